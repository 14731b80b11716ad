"""`shepherd evaluate` and `shepherd enjoy`: how a policy does, in figures or before one's eyes."""

from __future__ import annotations

import os
from pathlib import Path

from flows.cli.follow import following
from flows.report.command_lines import short_path
from flows.runs.listeners import working
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory, write_json


def evaluate(source: str, checkpoint: str | None, episodes: int, round: int, video: bool) -> int:
    """Judge a policy, greedily and sampling, and print the figures.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        checkpoint: latest, best or env steps; None = the one the run's results speak of.
        episodes: N, of each mode.
        round: set of evaluation seeds.
        video: also record one greedy episode.

    Returns:
        The exit code.
    """
    from flows.report.tables import evaluation_table  # rich
    from flows.report.terminal import show  # rich
    from rlcore.judge.film import film
    from rlcore.judge.final import evaluate_checkpoint  # torch

    run, path = locate(source, checkpoint)
    with following(run):
        results = {
            mode: evaluate_checkpoint(
                run, path, episodes, greedy=mode == "greedy", round=round, on_progress=working(f"evaluation, {mode}")
            )
            for mode in ("greedy", "stochastic")
        }
    recorded = film(run, path, "evaluation.mp4") if video else None
    name = f"{path.name}-round{round}-{episodes}.json"
    fields = {
        "env_steps": int(path.name),
        "checkpoint": str(path.relative_to(run.path)),
        "round": round,
        "video": recorded,
    }
    write_json(run.evaluations / name, fields | results)
    show(evaluation_table(results, run.read_baseline(), short_path(path)))
    where = f", video {short_path(run.path / recorded)}" if recorded else ""
    print(f"written to {short_path(run.evaluations / name)}{where}")
    return 0


def locate(source: str, checkpoint: str | None) -> tuple[RunDirectory, Path]:
    """The run and checkpoint that a command's SOURCE means.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        checkpoint: latest, best or env steps; None = the one the run's results speak of.

    Returns:
        Run and checkpoint directory.

    Raises:
        UserError: there is none, or two are named.
    """
    from rlcore.store import checkpoint as checkpoints  # torch

    path = Path(source).absolute()
    registered = source.startswith("models:/")
    if checkpoint is not None and (registered or (path / "manifest.json").exists()):
        what = "a registered model is of one checkpoint" if registered else "this is a checkpoint already"
        raise UserError(
            f"--checkpoint {checkpoint}: {source}: {what}; leave --checkpoint out, or give the run's folder"
        )
    if registered:
        from flows.registry.models import run_of  # MLflow

        path = run_of(source)
    if (path / "manifest.json").exists():
        run = RunDirectory.existing(path.parents[1])
        wrong = checkpoints.damage(path)
        if wrong:
            raise UserError(f"checkpoint {source}: {wrong}")
        return run, path
    run = RunDirectory.existing(path)
    return run, checkpoints.chosen(run) if checkpoint is None else checkpoints.resolve(run, checkpoint)


def enjoy(source: str, episodes: int) -> int:
    """Show a policy playing in a window, or record it where there is no display.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        episodes: how many to show.

    Returns:
        The exit code.
    """
    from rlcore.judge.film import film, show

    run, path = locate(source, None)
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        recorded = film(run, path, "enjoy.mp4")
        if recorded is None:
            raise UserError(f"{source}: this environment cannot be drawn here (see the warning above)")
        print(f"no display here: recorded {short_path(run.path / recorded)}")
        return 0
    for index, (ret, length) in enumerate(show(run, path, episodes)):
        print(f"episode {index + 1}: return {ret:g} in {length} steps")
    return 0

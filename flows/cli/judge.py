"""`shepherd evaluate`, `enjoy`, `collect`, `dream`: how a policy does, what it did, and what its model expects."""

from __future__ import annotations

import os
from pathlib import Path

from flows.cli.progress import following
from flows.report.command_lines import short_path
from flows.runs.listeners import working
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.system.printable import print_safely


def evaluate(source: str, checkpoint: str | None, episodes: int, round: int, video: bool) -> None:
    """Judge a policy over so many episodes of a round of seeds, greedily and sampling, and print the figures."""
    from flows.report.tables import evaluation_table  # rich
    from flows.report.terminal import show  # rich
    from rlcore.judge.film import film
    from rlcore.judge.final import evaluate_checkpoint  # torch
    from rlcore.store.checkpoint import manifest  # numpy

    run, path = locate(source, checkpoint)
    _compute_as(run)
    results = {}
    with following(run):
        for mode in ("greedy", "stochastic"):
            telling = working(f"evaluation, {mode}")
            results[mode] = evaluate_checkpoint(
                run, path, episodes, greedy=mode == "greedy", round=round, on_progress=telling
            )
    recorded = film(run, path, "evaluation.mp4") if video else None
    steps = manifest(path)["policy_steps"]
    written = run.evaluations / f"{steps}-round{round}-{episodes}.json"
    place = {"policy_steps": steps, "checkpoint": str(path.relative_to(run.path))}
    write_json(written, place | {"round": round, "video": recorded} | results)
    show(evaluation_table(results, run.read_baseline(), short_path(path)))
    where = f", video {short_path(run.path / recorded)}" if recorded else ""
    print_safely(f"written to {short_path(written)}{where}")


def collect(source: str, minari: str, episodes: int, checkpoint: str | None, actions: str, round: int) -> None:
    """Play so many episodes with a policy and write them as a dataset of Minari's."""
    from rlcore.store.minari_datasets import check_name  # gymnasium

    check_name(minari)
    run, path = locate(source, checkpoint)
    from rlcore.judge.collection import collect_episodes  # torch

    _compute_as(run)
    with following(run):
        told = working("episodes")
        made = collect_episodes(run, path, minari, episodes, actions=actions, round=round, on_progress=told)
    print_safely(
        f"{made['episodes']} episodes, {made['rows']:,} actions, mean return {made['mean']:g}: {made['folder']}"
    )
    print_safely(f"a memory begins with it by buffer.load_from=minari:{minari}")


def enjoy(source: str, episodes: int) -> None:
    """Show a policy playing in a window, or record it where there is no display."""
    from rlcore.judge.film import record_checkpoint, show

    run, path = locate(source)
    _compute_as(run)
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        recorded = record_checkpoint(run, path, "enjoy.mp4", episodes)
        print_safely(f"no display here: recorded {short_path(run.path / recorded)}")
        return
    for number, (ret, length) in enumerate(show(run, path, episodes), 1):
        print_safely(f"episode {number}: return {ret:g} in {length} steps")


def dream(source: str, checkpoint: str | None) -> None:
    """Look into a world model: episodes beside what it makes of them, and its own dreams, as pictures and films."""
    from flows.report.dreams import picture_dreams  # torch

    run, path = locate(source, checkpoint)
    _compute_as(run)
    with following(run):
        made = picture_dreams(run, path, working("episodes to dream of"))
    print_safely(f"dreams of {short_path(path)}:", *(f"  {short_path(run.path / name)}" for name in made), sep="\n")


def _compute_as(run: RunDirectory) -> None:
    """Have torch compute as the run's trainer does: with as many threads, and as exactly."""
    from rlcore.train.fabric import set_switches  # torch

    set_switches(config_of(run))


def locate(source: str, checkpoint: str | None = None) -> tuple[RunDirectory, Path]:
    """The run and checkpoint that SOURCE means: of a run the named one (latest, best, a number) or the chosen one."""
    from rlcore.store import checkpoint as checkpoints  # numpy

    path, registered = Path(source).absolute(), source.startswith("models:/")
    if checkpoint is not None and (registered or (path / "manifest.json").exists()):
        what = "a registered model is of one checkpoint" if registered else "this is a checkpoint already"
        raise UserError(
            f"--checkpoint {checkpoint}: {source}: {what}; leave --checkpoint out, or give the run's folder"
        )
    if registered:
        from flows.registry.models import run_of  # MLflow

        path = run_of(source)
    if not (path / "manifest.json").exists():
        run = RunDirectory.existing(path)
        return run, checkpoints.choose(run) if checkpoint is None else checkpoints.resolve(run, checkpoint)
    if wrong := checkpoints.damage(path):
        raise UserError(f"checkpoint {source}: {wrong}")
    return RunDirectory.of_checkpoint(path), path

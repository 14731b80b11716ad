"""What the commands of `flows.cli.main` do at the terminal, once their arguments are known to be right."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.process.parents import leaving_with
from flows.process.signals import farewell
from flows.report.command_lines import place, resume_command, shown, stage_command
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory


def follow(run: RunDirectory) -> int:
    """Run the whole flow on a prepared run directory, showing one progress line and, at the end, the results.

    Args:
        run: new or half-done.

    Returns:
        The exit code.
    """
    farewell(f"shepherd: interrupted; continue with: {resume_command(shown(run.path))}")
    from flows import train as training
    from flows.cli.progress import Progress
    from flows.report.tables import results_table
    from flows.runs.trainer import release
    from flows.workers.servers import check_servers
    from rlcore.store.checkpoint import newest_good
    from rlcore.store.run_config import config_of

    check_servers()
    config = config_of(run)
    newest = newest_good(run.checkpoints)  # says which were skipped
    going_on = f" · continues at {int(newest.name):,} env steps" if newest else ""
    if newest is None and run.events.exists():
        going_on = " · no checkpoint yet: from the beginning"
    print(f"{config.algo.name} on {config.env.id} · seed {config.seed} · {shown(run.path)}{going_on}", file=sys.stderr)
    progress = Progress(config.algo.total_steps)
    try:
        with training.watched(run, progress):
            summary = training.run_flow(run)
    finally:
        release(run, interrupt=True)
        progress.close()
    print(results_table(summary, run, next_commands(run), colour=sys.stdout.isatty()))
    return 0


def next_commands(run: RunDirectory) -> list[str]:
    """What is worth typing after a training; for MLflow the address of its server, when there is one."""
    from flows.process.network import is_server
    from flows.settings import tracking_uri

    where, store = shlex.quote(shown(run.path)), tracking_uri()
    return [
        f"{place()}shepherd enjoy {where}",
        f"{place()}shepherd evaluate {where} --episodes 100 --video",
        store if is_server(store) else f"{place()}mlflow ui --backend-store-uri {shlex.quote(store)}",
    ]


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
    from flows.report.tables import evaluation_table
    from rlcore.judge import final as judge
    from rlcore.store.directory import write_json

    run, path = locate(source, checkpoint)
    results = {
        mode: judge.evaluate_checkpoint(run, path, episodes, greedy=mode == "greedy", round=round)
        for mode in ("greedy", "stochastic")
    }
    film = judge.film(run, path, "evaluation.mp4") if video else None
    name = f"{path.name}-round{round}-{episodes}.json"
    fields = {"env_steps": int(path.name), "checkpoint": str(path.relative_to(run.path)), "round": round, "video": film}
    write_json(run.evaluations / name, fields | results)
    print(evaluation_table(results, run.read_baseline(), shown(path), sys.stdout.isatty()))
    print(f"written to {shown(run.evaluations / name)}" + (f", video {shown(run.path / film)}" if film else ""))
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
    from rlcore.judge import final as judge
    from rlcore.store import checkpoint as checkpoints

    path = Path(source).absolute()
    registered = source.startswith("models:/")
    if checkpoint is not None and (registered or (path / "manifest.json").exists()):
        what = "a registered model is of one checkpoint" if registered else "this is a checkpoint already"
        raise UserError(
            f"--checkpoint {checkpoint}: {source}: {what}; leave --checkpoint out, or give the run's folder"
        )
    if registered:
        from flows.registry.models import run_of

        path = run_of(source)
    if (path / "manifest.json").exists():
        run = RunDirectory.existing(path.parents[1])
        wrong = checkpoints.damage(path)
        if wrong:
            raise UserError(f"checkpoint {source}: {wrong}")
        return run, path
    run = RunDirectory.existing(path)
    return run, judge.chosen(run) if checkpoint is None else checkpoints.resolve(run, checkpoint)


def enjoy(source: str, episodes: int) -> int:
    """Show a policy playing in a window, or record it where there is no display.

    Args:
        source: run directory, checkpoint directory or models:/ URI.
        episodes: how many to show.

    Returns:
        The exit code.
    """
    from rlcore.judge import final as judge
    from rlcore.judge.show import watch

    run, path = locate(source, None)
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        film = judge.film(run, path, "enjoy.mp4")
        if film is None:
            raise UserError(f"{source}: this environment cannot be drawn here (see the warning above)")
        print(f"no display here: recorded {shown(run.path / film)}")
        return 0
    for index, (ret, length) in enumerate(watch(run, path, episodes)):
        print(f"episode {index + 1}: return {ret:g} in {length} steps")
    return 0


def stage(name: str, run_dir: str, overrides: Sequence[str], params: str | None = None) -> int:
    """Run one stage and print, as one JSON line, where its output is.

    Args:
        name: of the stage.
        run_dir: the run's folder; `make-env` makes it, and so does every stage with `params`.
        overrides: `make-env` only, or with `params`.
        params: a parameter file that the run follows; see `flows.runs.params`.

    Returns:
        The exit code.

    Raises:
        UserError: overrides where there must be none, or a stage before `make-env`.
    """
    typed = stage_command(name, run_dir, params, overrides)
    again = "dvc repro" if os.environ.get("DVC_STAGE") else typed
    farewell(f"shepherd: interrupted; continue with: {again}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    with leaving_with("dvc", certain="DVC_STAGE" in os.environ):
        print(json.dumps(_staged(name, run_dir, overrides, params)))
    return 0


def _staged(name: str, run_dir: str, overrides: Sequence[str], params: str | None) -> dict[str, Any]:
    """What the stage made."""
    if params is not None:
        from flows.runs.params import bring_to

        run = bring_to(run_dir, params, overrides, name)
    elif name == "make-env":
        run = _made(run_dir, overrides)
    elif overrides:
        raise UserError(f"{overrides[0]}: a run's config is fixed by `shepherd stage make-env`")
    else:
        run = RunDirectory.existing(Path(run_dir).absolute())
    if name != "make-env" and not run.card.exists():
        first = stage_command("make-env", run_dir, params, overrides)
        raise UserError(f"{run_dir}: no env_card.json yet; `{first}` comes first")
    with run.driving():
        return _driven(name, run)


def _made(run_dir: str, overrides: Sequence[str]) -> RunDirectory:
    """The run in a folder; with overrides, or where there is none, a new one."""
    from flows.config.compose import compose
    from flows.runs.create import new_run

    run = RunDirectory(Path(run_dir).absolute())
    if run.config.exists() and not overrides:
        return run
    overrides = [*overrides, f"run_dir={run_dir}"]
    return new_run(*compose(overrides), overrides)


def _driven(name: str, run: RunDirectory) -> dict[str, Any]:
    """What a stage made of a run that nobody else is working on."""
    from flows.runs.milestones import note_baseline, note_start

    note_start(run)
    if name == "train":
        note_baseline(run)
        return _stage_train(run)
    from rlcore.store.run_config import config_of

    config = config_of(run)
    if name == "make-env":
        from flows.stages.make_env import make_env

        return {"env_card": str(make_env(config, run))}
    if name == "collect":
        from flows.stages.collect import collect

        return {"dataset": str(collect(config, run))}
    if name == "checkpoint":
        from flows.stages.checkpoint import checkpoint

        return checkpoint(run)
    if name == "evaluate":
        return {"evaluation": str(_stage_evaluate(run))}
    from flows.runs.series import write_model
    from flows.stages.register_model import register_model
    from flows.stages.summary import summarise
    from flows.tracking.mlflow_run import mirror

    result = register_model(config, run)
    summarise(run)
    write_model(run, result)
    mirror(run)  # evaluation, model and summary too
    return result


def _stage_train(run: RunDirectory) -> dict[str, Any]:
    """Drive the trainer, which reads and checks the config: in this process that would cost the import of torch."""
    from dataclasses import asdict

    from flows.cli.progress import Progress
    from flows.runs.listeners import watching
    from flows.runs.trainer import release, trainer_for
    from flows.stages.train import train
    from flows.tracking.background import mirror_in_background

    progress = Progress(trainer_for(run).total_steps)
    try:
        with watching(lambda kind, facts: progress.note(facts["doing"]) if kind == "stage" else None):
            boundary = train(run, lambda said: progress.update(**progress_fields(said)))
    except BaseException:
        # Ctrl-C, SIGTERM, a closed terminal: what was learned since the last checkpoint is not to be lost.
        release(run, interrupt=True)
        raise
    finally:
        release(run)
        progress.close()
        mirror_in_background(run)
    return asdict(boundary)


def progress_fields(said: dict[str, Any]) -> dict[str, Any]:
    """A trainer's progress event as the arguments of `Progress.update`."""
    rate = said["env_steps"] / said["elapsed"] if said["elapsed"] > 0 else 0.0
    return {
        "env_steps": said["env_steps"],
        "episode_return": said["return"],
        "steps_per_second": rate,
        "elapsed": said["elapsed"],
    }


def _stage_evaluate(run: RunDirectory) -> Path:
    from flows.report.curve import learning_curve
    from flows.runs.series import write_results
    from flows.stages.summary import summarise
    from rlcore.judge.final import final_evaluation

    event = final_evaluation(run)
    learning_curve(run)
    write_results(run, summarise(run))
    return run.evaluations / f"{event['env_steps']}.json"

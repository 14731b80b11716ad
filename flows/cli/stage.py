"""Command `shepherd stage`, which runs one stage of a run; the DVC pipelines call it."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from flows.cli.progress import show_progress
from flows.process.exits import name_continuation
from flows.process.locks import hold
from flows.process.network import is_server
from flows.process.parents import exit_with_parent
from flows.report.command_lines import stage_command
from flows.runs.listeners import subscribe
from flows.runs.milestones import note_start
from flows.runs.trainer import release_after
from flows.settings import database_lock, tracking_uri
from flows.tracking.mirror import finish_mirror, mirror_in_background
from flows.tracking.mlflow_store import store_uri
from flows.tracking.view_commands import view_commands
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import log_handler, print_safely

LONG = 30.0  # seconds of training after which it is mirrored to MLflow while it runs


def stage(name: str, run_dir: str, overrides: Sequence[str], params: str | None = None) -> None:
    """Run one stage of a run and print the result as one line of JSON.

    Args:
        name: name of the stage, such as `make-env`, `train` or `evaluate`.
        run_dir: run directory.
        overrides: command-line overrides. Without a parameter file, only the stage `make-env` accepts them, because
            it creates the run.
        params: parameter file of a DVC pipeline, or None. With a parameter file, every stage first makes the run's
            config equal to the file.

    Raises:
        UserError: the run does not exist, or the stage `make-env` has not run yet.
    """
    by_dvc = "DVC_STAGE" in os.environ
    file = os.environ.get("DVC_STAGE", "").rpartition(":")[0]  # empty if it is ./dvc.yaml
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler("%(levelname)s %(message)s")])
    # Servers that `make up` has started would write to the same databases at the same time.
    alone = nullcontext() if is_server(tracking_uri()) else hold(database_lock(), shared=True)
    again = f"dvc repro {file}".rstrip() if by_dvc else stage_command(name, run_dir, params, overrides)
    with name_continuation(again), alone, exit_with_parent("dvc", certain=by_dvc):
        run = _run_of(name, run_dir, overrides, params)
        if name != "make-env" and not run.card.exists():
            first = stage_command("make-env", run_dir, params, overrides)
            raise UserError(f"{run_dir}: no env_card.json yet; run `{first}` first")
        shown = _mirror(run) if name == "train" else nullcontext()
        with (
            run.removed_if_refused(),
            run.driving(),
            show_progress(run),
            release_after(run),
            shown,
        ):  # the release prints what it has saved
            note_start(run)
            print_safely(json.dumps(_make(name, run)))
        if name == "register-model":
            finish_mirror(run)  # includes evaluation, model and summary
        if name in ("train", "register-model"):  # the standard output contains only JSON
            for command in view_commands([run]):
                print_safely(command, file=sys.stderr)


@contextmanager
def _mirror(run: RunDirectory) -> Iterator[None]:
    """Context manager that copies the event log of a training to MLflow while the training runs.

    The log is copied in a separate process after checkpoints and evaluations. If MLflow is not a server, copying starts
    after 30 s of training, because the start of that process takes as long as a short training. After the training,
    the stage register-model copies everything that is still missing in MLflow.
    """
    config, begun, wanted = run.read_config(), time.monotonic(), False
    served = is_server(store_uri(config))

    def listener(kind: str, facts: dict[str, Any]) -> None:
        nonlocal wanted
        wanted = wanted or served or time.monotonic() - begun > LONG
        if wanted and kind in ("checkpoint", "evaluation"):
            mirror_in_background(run)

    with subscribe(listener):
        yield
    if wanted and config["metric"]["log_level"]:  # otherwise there is nothing new to copy to MLflow
        mirror_in_background(run, every=0.0, last=True)


def _make(name: str, run: RunDirectory) -> dict[str, Any]:
    """Run one stage and return its result; `train` runs to the end, with all scheduled checkpoints and evaluations."""
    function = name.replace("-", "_")
    module = import_module(f"flows.stages.{function}")  # does not import the other stages
    result = getattr(module, function)(run, **({"final": True} if name == "evaluate" else {}))
    return asdict(result) if name == "train" else result


def _run_of(name: str, run_dir: str, overrides: Sequence[str], params: str | None) -> RunDirectory:
    """Return the run in the folder `run_dir`, on which the stage `name` works.

    If `params` is a parameter file, the run is first created, updated or replaced, so that its config equals the file.
    Without a parameter file, the stage make-env creates the run, and all other stages need an existing run.
    """
    if params is not None:
        from flows.runs.params import follow_params  # gymnasium

        return follow_params(run_dir, params, overrides, name)
    run = RunDirectory(Path(run_dir).absolute())
    if name == "make-env" and (overrides or not run.config.exists()):
        from flows.runs.create import new_run  # numpy

        return new_run([*overrides, f"run_dir={run_dir}"])
    if overrides:
        raise UserError(
            f"{overrides[0]}: stage {name} accepts no overrides; give them to `shepherd stage make-env`, which creates "
            "the run"
        )
    return RunDirectory.existing(run.path)

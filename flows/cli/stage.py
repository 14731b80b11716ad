"""`shepherd stage`: one stage on a run directory. What DVC calls."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from flows.cli.follow import following
from flows.process.locks import locked
from flows.process.network import is_server
from flows.process.parents import leaving_with
from flows.process.signals import farewell
from flows.report.command_lines import stage_command
from flows.runs.milestones import note_start
from flows.runs.trainer import released
from flows.settings import database_lock, tracking_uri
from flows.tracking.mirror import finish_mirror, mirror_in_background
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

STAGES = ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model")


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
    again = "dvc repro" if os.environ.get("DVC_STAGE") else stage_command(name, run_dir, params, overrides)
    farewell(f"shepherd: interrupted; continue with: {again}")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # `make up` beside it would have its servers write the databases that this command writes.
    alone = nullcontext() if is_server(tracking_uri()) else locked(database_lock(), shared=True)
    with alone, leaving_with("dvc", certain="DVC_STAGE" in os.environ):
        run = _run_of(name, run_dir, overrides, params)
        if name != "make-env" and not run.card.exists():
            first = stage_command("make-env", run_dir, params, overrides)
            raise UserError(f"{run_dir}: no env_card.json yet; `{first}` comes first")
        with run.driving(), released(run), following(run):
            note_start(run)
            print(json.dumps(_made(name, run)))
        if name == "train":
            mirror_in_background(run)
        elif name == "register-model":
            finish_mirror(run)  # evaluation, model and summary too
    return 0


def _made(name: str, run: RunDirectory) -> dict[str, Any]:
    """What a stage makes; `train` goes on to the end of training, with what is due at its boundaries."""
    if name == "train":
        from flows.stages.train import to_the_end  # the other stages do without

        return asdict(to_the_end(run))
    module = name.replace("-", "_")
    function = getattr(import_module(f"flows.stages.{module}"), module)  # the others' imports are not waited for
    return function(run, final=True) if name == "evaluate" else function(run)


def _run_of(name: str, run_dir: str, overrides: Sequence[str], params: str | None) -> RunDirectory:
    """The run in a folder, brought to its parameter file or made by make-env."""
    if params is not None:
        from flows.runs.params import follow_params  # torch

        return follow_params(run_dir, params, overrides, name)
    run = RunDirectory(Path(run_dir).absolute())
    if name == "make-env" and (overrides or not run.config.exists()):
        from flows.runs.create import new_run  # torch

        return new_run([*overrides, f"run_dir={run_dir}"])
    if overrides:
        raise UserError(f"{overrides[0]}: a run's config is fixed by `shepherd stage make-env`")
    return RunDirectory.existing(run.path)

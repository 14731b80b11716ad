"""A run directory that follows a parameter file, `params.yaml`: what the stages of a DVC pipeline work in.

DVC runs a stage again when its parameters changed, and leaves the run's checkpoints where they are, so that a killed
`dvc repro` goes on from them. Checkpoints of other parameters, or of other code, must then not be taken for this run's:
the run they belong to is set aside, whole, in `set_aside/<run id>` inside the folder.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose_params
from flows.config.files import default_names
from flows.report.command_lines import stage_command
from flows.runs.change import rewrite_config
from flows.runs.check import prepared
from flows.runs.create import create_run
from flows.runs.lineage import core_hash
from rlcore.config.groups import RunConfig
from rlcore.config.schema import plain, spell
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.resume_rules import refuse_other_config
from rlcore.store.run_config import config_of
from rlcore.system.durable import make_directory

MAY_SET_ASIDE = ("make-env", "collect", "train")  # the stages behind which all that is learned is made anew
SHARED = ("env_card.json", "env_card.md", "dataset")  # outputs of make-env and collect: they may be good for a new run
# They change nothing of what is learned step by step, but where it ends, in which bits, or which checkpoint is the best
# one: what the results speak of.
DECIDING = ("early_stop", "evaluation.every", "evaluation.episodes", "evaluation.max_episode_steps", "checkpoint.every")
DECIDING += ("checkpoint.resume_from", "num_threads")
log = logging.getLogger(__name__)


def bring_to(run_dir: str, params: str, overrides: Sequence[str], stage: str) -> RunDirectory:
    """Bring a run directory to a parameter file.

    Args:
        run_dir: the run's folder; made when there is no run yet.
        params: the parameter file.
        overrides: settings on top of it.
        stage: on whose behalf.

    Returns:
        The run; its config is that of the file.

    Raises:
        UserError: the parameters are wrong, and nothing has been touched; or they are others than the run learned
            with, and the stage is none of those that begin anew.
    """
    typed = [*overrides, f"run_dir={run_dir}"]
    config, values = compose_params(Path(params), typed)
    run = RunDirectory(Path(run_dir).absolute())
    reason = None
    if run.config.exists():
        run.refuse_second_writer()
        config, values = _with_known_source(run, config, values)
        reason = _stale(run, config)
        if reason is None:
            stored = run.read_config()
            values |= {key: stored[key] for key in default_names() if key in stored and key != "exp_name"}
            if values != stored:
                rewrite_config(run, values)
            return run
        if stage not in MAY_SET_ASIDE:
            first = stage_command("train", run_dir, params, overrides)
            raise UserError(f"{run_dir}: {reason}; `{first}` (in a pipeline: `dvc repro --force train`) comes first")
    config, values, source = prepared(config, values)  # a mistake is told while everything is in its place
    if reason is not None:
        place = set_aside(run)
        log.warning("%s: %s; the run is set aside in %s", run_dir, reason, os.path.relpath(place))
    if not _measured_for(run, config):
        _discard_measured(run)
    return create_run(config, values, ["--params", params, *typed], source)


def set_aside(run: RunDirectory) -> Path:
    """Move everything of a run into `set_aside/<run id>` of its folder; card, dataset and identity are copied.

    The config, which makes a folder a run, is moved last: killed half-way, all of it is done again.

    Args:
        run: not being trained.

    Returns:
        The folder, a run directory of its own.
    """
    with run.driving():
        place = run.set_aside / run.read_identity()["run_id"]
        make_directory(place)
        shutil.copy2(run.identity, place)
        stays = {run.set_aside.name, run.lock.name, run.driver.name, run.identity.name}
        names = [path.name for path in run.path.iterdir() if path.name not in stays]
        for name in sorted(names, key=lambda name: name == run.config.name):
            here, there = run.path / name, place / name
            if name not in SHARED:
                os.replace(here, there)
            elif here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            else:
                shutil.copy2(here, there)
    return place


def _with_known_source(
    run: RunDirectory, config: RunConfig, values: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """The config with the folder that `init_from` meant when the run was made: an alias may point elsewhere today."""
    source = run.read_identity().get("init_from") or {}
    if not config.init_from or source.get("given") != config.init_from:
        return config, values
    return dataclasses.replace(config, init_from=source["path"]), {**values, "init_from": source["path"]}


def _stale(run: RunDirectory, config: RunConfig) -> str | None:
    """Why what is in the run's folder was learned otherwise than this config and this code would; None = it was not."""
    if run.read_identity().get("core_hash") != core_hash():
        return "rlcore has changed since the run was made"
    before = config_of(run)
    if before.algo.total_steps != config.algo.total_steps:
        budgets = f"algo.total_steps={config.algo.total_steps}: the run has {before.algo.total_steps}"
        # Without numbers of their own, evaluations and checkpoints fall on other steps with another budget.
        if before.algo.total_steps > config.algo.total_steps or None in (
            config.evaluation.every,
            config.checkpoint.every,
        ):
            return budgets
    for key in DECIDING:
        old, new = plain(_value(before, key)), plain(_value(config, key))
        if old != new:
            return f"{key}={spell(new)}: the run has {key}={spell(old)}"
    try:
        refuse_other_config(run, before, config)
    except UserError as error:
        return str(error).split(", and a resumed run")[0]
    return None


def _measured_for(run: RunDirectory, config: RunConfig) -> bool:
    """Whether the card that lies in the folder is of this environment and seed."""
    from rlcore.envs.make import EnvSettings

    if not run.card.exists():
        return False
    card = run.read_card()
    settings = json.loads(json.dumps(dataclasses.asdict(EnvSettings.of(config.env))))
    return card.get("settings") == settings and card.get("tested", {}).get("seed") == config.seed


def _discard_measured(run: RunDirectory) -> None:
    for name in SHARED:
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config

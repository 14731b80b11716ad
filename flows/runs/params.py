"""A run directory that follows a parameter file (params.yaml): the same folder at every call, as a DVC stage needs it.

DVC runs a stage again when its parameters changed, and leaves the run's checkpoints where they are, so that a killed
`dvc repro` goes on from them. Checkpoints of other parameters or other code must not be resumed then: the run that they
belong to is set aside, whole, in `set_aside/<run id>` inside the folder.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from flows.config.compose import compose_params
from flows.config.yaml_files import default_names
from flows.report.command_lines import stage_command
from flows.runs.change import rewrite_config
from flows.runs.check import prepare
from flows.runs.create import create_run
from flows.runs.lineage import core_hash
from rlcore import plugins
from rlcore.config.groups import RunConfig
from rlcore.config.values import plain, spell
from rlcore.envs.make import EnvSettings
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.run_files import read_mapping
from rlcore.system.durable import make_directory
from rlcore.train.resume_rules import refuse_other_config

MAY_SET_ASIDE = ("make-env", "collect", "train")  # a later stage would judge weights that are gone
# Of make-env and collect; a new run on the same environment may use them.
MEASURED = ("env_card.json", "env_card.md", "dataset")
# Keys that change no update, but where training ends, in which bits, or which checkpoint is the best one.
DECIDING = ("early_stop", "evaluation.every", "evaluation.episodes", "evaluation.max_episode_steps", "checkpoint.every")
DECIDING += ("checkpoint.resume_from", "num_threads")
log = logging.getLogger(__name__)


def follow_params(run_dir: str, params: str, overrides: Sequence[str], stage: str) -> RunDirectory:
    """The run in a folder, with the config of a parameter file: made, changed, or set aside for a new one.

    A `UserError` where a parameter is wrong, or the run learned with others and the stage that is about to run is none
    of MAY_SET_ASIDE; nothing has been touched then.
    """
    typed = [*overrides, f"run_dir={run_dir}"]
    config, values = compose_params(Path(params), typed)
    run = RunDirectory(Path(run_dir).absolute())
    stale = None
    if run.config.exists():
        run.refuse_second_writer()
        config, values = _with_known_source(run, config, values)
        stale = _stale(run, config)
        if stale is None:
            stored = run.read_config()
            kept = default_names().keys() & stored.keys() - {"label", "exp_name"}
            values |= {key: stored[key] for key in kept}
            if values != stored:
                rewrite_config(run, values)
            return run
        if stage not in MAY_SET_ASIDE:
            raise UserError(f"{run_dir}: {stale}; {_train_again(run_dir, params, overrides)} comes first")
    config, values, source = prepare(config, values)  # a mistake is told while everything is in its place
    if stale is not None:
        place = set_aside(run)
        log.warning("%s: %s; the run is set aside in %s", run_dir, stale, os.path.relpath(place))
    for name in _find_stale_measurements(run, config):
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return create_run(config, values, ["--params", params, *typed], source)


def set_aside(run: RunDirectory) -> Path:
    """Move a run into `set_aside/<run id>` of its folder, a run directory of its own; what may be used again is copied.

    config.yaml, which makes a folder a run, is moved last: after a kill half-way the next call does all of it again.
    """
    with run.driving():
        place = run.set_aside / run.read_identity()["run_id"]
        make_directory(place)
        shutil.copy2(run.identity, place)
        stays = {run.set_aside.name, run.lock.name, run.driver.name, run.identity.name}
        names = [path.name for path in run.path.iterdir() if path.name not in stays]
        for name in sorted(names, key=lambda name: name == run.config.name):
            here, there = run.path / name, place / name
            if name not in MEASURED:
                os.replace(here, there)
            elif here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            else:
                shutil.copy2(here, there)
    return place


def _train_again(run_dir: str, params: str, overrides: Sequence[str]) -> str:
    """The command, for whoever called the stage, that puts a stale run right."""
    _, _, env = os.environ.get("DVC_STAGE", "").partition("@")
    dvc = f"dvc repro --force train@{env}" if env else "dvc repro --force train"
    return f"`{stage_command('train', run_dir, params, overrides)}` (in a pipeline: `{dvc}`)"


def _with_known_source(
    run: RunDirectory, config: RunConfig, values: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """The config with the folder that `init_from` meant when the run was made: an alias may point elsewhere today."""
    source = run.read_identity().get("init_from") or {}
    if not config.init_from or source.get("given") != config.init_from:
        return config, values
    return dataclasses.replace(config, init_from=source["path"]), {**values, "init_from": source["path"]}


def _stale(run: RunDirectory, config: RunConfig) -> str | None:
    """Reason why the run that is there is not what this config and this code would learn; None when it is."""
    if run.read_identity().get("core_hash") != core_hash():
        return "rlcore has changed since the run was made"
    now = plugins.hashes()
    for module, digest in run.read_identity().get("plugins", {}).items():
        if now.get(module) != digest:
            return f"plugin {module} has changed since the run was made"
    before = config_of(run)
    # Without numbers of their own, evaluations and checkpoints fall on other steps with another budget, or last longer.
    by_budget = None in (config.evaluation.every, config.evaluation.max_episode_steps, config.checkpoint.every)
    shorter = config.algo.total_steps < before.algo.total_steps
    for key in ("algo.total_steps", *DECIDING) if by_budget or shorter else DECIDING:
        old, new = plain(attrgetter(key)(before)), plain(attrgetter(key)(config))
        if old != new:
            return f"{key}={spell(new)}: the run has {key}={spell(old)}"
    try:
        refuse_other_config(run, before, config)
    except UserError as error:
        return str(error).split(", and a resumed run")[0]
    return None


def _find_stale_measurements(run: RunDirectory, config: RunConfig) -> Sequence[str]:
    """Names of what lies measured in the folder and is not of this environment, or was played from another seed."""
    settings = json.loads(json.dumps(dataclasses.asdict(EnvSettings.of(config.env))))
    if not run.card.exists() or run.read_card().get("settings") != settings:
        return MEASURED
    manifest = run.dataset / "manifest.json"
    with suppress(UserError):  # a damaged one is collected again
        if manifest.exists() and read_mapping(manifest, "").get("seed") == config.seed:
            return ()
    return (run.dataset.name,)

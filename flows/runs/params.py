"""Runs that are configured by a parameter file (params.yaml), for DVC pipelines.

The run directory of such a run is fixed, because a DVC stage requires fixed output paths. DVC repeats a stage if its
parameters have changed. It does not delete the run's checkpoints, so that a killed `dvc repro` can resume from them.
A run must not resume from checkpoints that were trained with other parameters or other code. If parameters or code have
changed, the old run is therefore moved to the subfolder `set_aside/<run id>`, and a new run is created.
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
from flows.runs.check import prepare
from flows.runs.create import create_run, rewrite_config
from flows.runs.lineage import INPUTS, core_hash, inputs_as_given, place_inputs
from rlcore import plugins
from rlcore.config.run import RunConfig
from rlcore.config.values import plain, spell
from rlcore.envs.make import EnvSettings
from rlcore.errors import UserError
from rlcore.store.checkpoint import manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.run_files import read_mapping
from rlcore.system.durable import make_directory
from rlcore.train.resume import refuse_other_config

MAY_SET_ASIDE = ("make-env", "collect", "train")  # a later stage would evaluate weights that were moved
# Files of make-env and collect; a new run in the same environment may use them.
MEASURED = ("env_card.json", "env_card.md", "dataset")
# Keys that do not change an update but affect the end of training, the exact bits, the best checkpoint or the metrics.
DECIDING = ("stop", "evaluation.every", "evaluation.episodes", "evaluation.max_episode_steps", "checkpoint.every")
DECIDING += ("checkpoint.resume_from", "num_threads", "callbacks", "env.info_keys")
log = logging.getLogger(__name__)


def follow_params(run_dir: str, params: str, overrides: Sequence[str], stage: str) -> RunDirectory:
    """Return the run in the folder `run_dir`, after applying the config of a parameter file.

    If the folder has no run, a run is created. If it has a run that can continue with the new config, the config of
    that run is updated. Otherwise the run is stale: it is moved to `set_aside/`, and a new run is created.

    Raises a `UserError`, without changing any file, if a parameter is invalid, or if the run is stale and `stage` is
    not in MAY_SET_ASIDE.
    """
    typed = [*overrides, f"run_dir={run_dir}"]
    config, values = compose_params(Path(params), typed)
    run = RunDirectory(Path(run_dir).absolute())
    stale = None
    if run.config.exists():
        run.refuse_second_writer()
        stale = _changed_source(run, config)
        if stale is None:
            config, values = _with_known_inputs(run, config, values)
            stale = _stale(run, config)
        if stale is None:
            stored = run.read_config()
            kept = default_names().keys() & stored.keys() - {"label", "exp_name"}
            values |= {key: stored[key] for key in kept}
            if values != stored:
                rewrite_config(run, values)
            return run
        if stage not in MAY_SET_ASIDE:
            raise UserError(f"{run_dir}: {stale}; first run {_train_again(stage, run_dir, params, overrides)}")
    config, values, inputs = prepare(config, values)  # raises before any file is moved
    if stale is not None:
        target = set_aside(run)
        log.warning("%s: %s; the run was moved to %s", run_dir, stale, os.path.relpath(target))
    for name in _find_stale_measurements(run, config):
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return create_run(config, values, ["--params", params, *typed], inputs)


def set_aside(run: RunDirectory) -> Path:
    """Move the files of a run to the subfolder `set_aside/<run id>` of its run directory, and return that subfolder.

    The environment card and the dataset are copied instead of moved, because a new run in the same run directory can
    use them. config.yaml is moved last, because a folder with this file is a run: if the process is killed, the next
    call repeats the move.
    """
    with run.driving():
        target = run.set_aside / run.read_identity()["run_id"]
        make_directory(target)
        shutil.copy2(run.identity, target)
        stays = {run.set_aside.name, run.lock.name, run.driver.name, run.identity.name}
        names = [path.name for path in run.path.iterdir() if path.name not in stays]
        for name in sorted(names, key=lambda name: name == run.config.name):
            old, new = run.path / name, target / name
            if name not in MEASURED:
                os.replace(old, new)
            elif old.is_dir():
                shutil.copytree(old, new, dirs_exist_ok=True)
            else:
                shutil.copy2(old, new)
    return target


def _train_again(stage: str, run_dir: str, params: str, overrides: Sequence[str]) -> str:
    """Return the command that replaces a stale run, for an error message of the stage `stage`."""
    command = f"`{stage_command('train', run_dir, params, overrides)}`"
    if not (address := os.environ.get("DVC_STAGE")):
        return command
    file, colon, target = address.rpartition(":")  # DVC writes the file, if it is not ./dvc.yaml, before the stage
    name, at, item = target.partition("@")
    if name == stage:  # otherwise, one stage of DVC contains all commands of the run
        name = "train"
    return f"{command} (in a pipeline: `dvc repro --force {file}{colon}{name}{at}{item}`)"


def _with_known_inputs(
    run: RunDirectory, config: RunConfig, values: dict[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """Return the config with the keys of inputs, such as `init_from`, set to the paths that the run used.

    The values may be a registry alias or a run, which may now have another version or checkpoint. A value that has
    changed since the run was created is returned unchanged.
    """
    identity, given = run.read_identity(), inputs_as_given(run)
    known = {name: identity[name]["path"] for name in given if given[name] == attrgetter(INPUTS[name])(config)}
    return place_inputs(config, values, known)


def _stale(run: RunDirectory, config: RunConfig) -> str | None:
    """Return the reason why the existing run cannot be continued with this config and the current code.

    Return None if the run can be continued, because config and code would train it in the same way.
    """
    if run.read_identity().get("core_hash") != core_hash():
        return "the code of rlcore has changed since the run was created"
    now = plugins.hashes()
    for module, digest in run.read_identity().get("plugins", {}).items():
        if now.get(module) != digest:
            return f"plugin {module} has changed since the run was created"
    stored = config_of(run)
    # The defaults of these keys depend on total_steps: another budget gives other steps and lengths of evaluations.
    by_budget = None in (config.evaluation.every, config.evaluation.max_episode_steps, config.checkpoint.every)
    shorter = config.algo.step_limit < stored.algo.step_limit
    for key in ("algo.total_steps", *DECIDING) if by_budget or shorter else DECIDING:
        old, new = plain(attrgetter(key)(stored)), plain(attrgetter(key)(config))
        if old != new:
            return f"{key}={spell(new)}: the run has {key}={spell(old)}"
    try:
        refuse_other_config(run, stored, config)
    except UserError as error:
        return str(error).split(", which cannot change on resume")[0]
    return None


def _changed_source(run: RunDirectory, config: RunConfig) -> str | None:
    """Return a reason if the run from which this run started has been trained again, for a pipeline of two runs.

    Return None if it has not changed, if it no longer exists, or if the weights are from the registry.
    """
    from rlcore.train.extension import locate_state  # torch
    from rlcore.train.initial_weights import locate_source  # torch

    identity = run.read_identity()
    key, origin = next(((key, identity[key]) for key in ("init_from", "extend_from") if key in identity), ("", {}))
    if not origin or origin.get("uri"):
        return None
    path = Path(origin["path"])
    if not (path / "manifest.json").exists():
        with suppress(UserError):
            given = Path(origin["given"])
            path = locate_state(given) if key == "extend_from" else locate_source(config, given)
    if (path / "manifest.json").exists() and manifest(path)["digest"] != origin["digest"]:
        return f"{INPUTS[key]}={origin['given']}: its checkpoint has changed since the run was created"
    return None


def _find_stale_measurements(run: RunDirectory, config: RunConfig) -> Sequence[str]:
    """Return the names of measured files in the folder that belong to another environment or seed."""
    settings = json.loads(json.dumps(dataclasses.asdict(EnvSettings.of(config.env))))
    if not run.card.exists() or run.read_card().get("settings") != settings:
        return MEASURED
    manifest = run.dataset / "manifest.json"
    with suppress(UserError):  # a damaged dataset is collected again
        if manifest.exists() and read_mapping(manifest, "").get("seed") == config.seed:
            return ()
    return (run.dataset.name,)

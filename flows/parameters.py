"""A run directory that follows a parameter file, `params.yaml`: what the stages of a DVC pipeline work in.

DVC runs a stage again when its parameters changed, and leaves the run's checkpoints where they are, so that a killed
`dvc repro` goes on from them. Checkpoints of other parameters, or of other code, must then not be taken for this run's:
the run they belong to is set aside, whole, in `set_aside/<run id>` inside the folder.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config import compose_parameters, default_names
from flows.lineage import core_hash
from flows.store import new_run, refuse_other_learning, rewrite_config
from rlcore.durable import make_directory
from rlcore.errors import UserError
from rlcore.run.config import RunConfig, config_of
from rlcore.run.directory import RunDirectory
from rlcore.schema import plain, spell

MAY_SET_ASIDE = ("make-env", "train")  # the stages behind which everything is made anew
SHARED = ("env_card.json", "env_card.md", "dataset")  # outputs of make-env and collect: DVC knows whether they are good
# They change nothing of what is learned step by step, but where it ends, in which bits, or which checkpoint is the best
# one: what the results speak of.
DECIDING = ("early_stop", "evaluation.every", "evaluation.episodes", "evaluation.max_episode_steps", "checkpoint.every")
DECIDING += ("checkpoint.resume_from", "num_threads")
log = logging.getLogger(__name__)


def follow(run_dir: str, params: Path, overrides: Sequence[str], stage: str) -> RunDirectory:
    """Bring a run directory to a parameter file.

    Args:
        run_dir: the run's folder; made when there is no run yet.
        params: the parameter file.
        overrides: settings on top of it.
        stage: on whose behalf.

    Returns:
        The run; its config is that of the file.

    Raises:
        UserError: the parameters are wrong; or they are others than the run learned with, and the stage is none of
            those that begin anew.
    """
    typed = [*overrides, f"run_dir={run_dir}"]
    config, values = compose_parameters(params, typed)
    run = RunDirectory(Path(run_dir).absolute())
    if run.config.exists():
        run.refuse_second_writer()
        reason = _stale(run, config)
        if reason is None:
            stored = run.read_config()
            values |= {key: stored[key] for key in default_names() if key in stored and key != "exp_name"}
            if values != stored:
                rewrite_config(run, values)
            return run
        if stage not in MAY_SET_ASIDE:
            raise UserError(f"{run_dir}: {reason}; `shepherd stage train {run_dir} --params {params}` comes first")
        place = set_aside(run)
        log.warning("%s: %s; the run is set aside in %s", run_dir, reason, os.path.relpath(place))
    return new_run(config, values, ["--params", str(params), *typed])


def set_aside(run: RunDirectory) -> Path:
    """Move everything of a run into `set_aside/<run id>` of its folder; card and dataset are copied.

    Killed half-way it is done again: the config, which makes a folder a run, is moved last but for the identity.

    Args:
        run: not being trained.

    Returns:
        The folder, a run directory of its own.
    """
    with run.driving():
        place = run.path / "set_aside" / run.read_identity()["run_id"]
        make_directory(place)
        last = {run.config.name: 1, run.identity.name: 2}
        stays = {place.parent.name, run.lock.name, run.driver.name}
        for path in sorted((p for p in run.path.iterdir() if p.name not in stays), key=lambda p: last.get(p.name, 0)):
            if path.name not in SHARED:
                os.replace(path, place / path.name)
            elif path.is_dir():
                shutil.copytree(path, place / path.name, dirs_exist_ok=True)
            else:
                shutil.copy2(path, place / path.name)
    return place


def _stale(run: RunDirectory, config: RunConfig) -> str | None:
    """Why what is in the run's folder was learned otherwise than this config and this code would; None = it was not."""
    before = config_of(run)
    known = run.read_identity().get("core_hash")
    if known != core_hash():
        return "rlcore has changed since the run was made"
    if before.algo.total_steps > config.algo.total_steps:
        return f"algo.total_steps={config.algo.total_steps}: the run has {before.algo.total_steps}"
    for key in DECIDING:
        old, new = plain(_value(before, key)), plain(_value(config, key))
        if old != new:
            return f"{key}={spell(new)}: the run has {key}={spell(old)}"
    try:
        refuse_other_learning(run, before, config)
    except UserError as error:
        return str(error).split(", and a resumed run")[0]
    return None


def _value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config

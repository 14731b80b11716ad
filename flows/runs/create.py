"""Creation of run directories from composed configs, and changes of the config of an existing run."""

from __future__ import annotations

import datetime
import logging
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from flows.config.compose import compose, compose_existing, dump
from flows.runs.check import prepare
from flows.runs.lineage import code_diff, code_version, hash_of_diff
from rlcore import plugins
from rlcore.config.learning_half import config_hash
from rlcore.config.run import RunConfig
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.train.resume import refuse_other_config

log = logging.getLogger(__name__)


def new_run(
    overrides: Sequence[str], flow_run: str = "", composed: tuple[RunConfig, Mapping[str, Any]] | None = None
) -> RunDirectory:
    """Compose a config, check it on this machine, and create the run directory. After an error, no file is left.

    `flow_run` is the id of the Prefect flow run if a worker creates the run. `composed` is the result of
    `compose(overrides)` if the caller has it; otherwise this function composes the config.
    """
    config, values = composed or compose(overrides)
    RunDirectory.new(config.run_dir)
    config, values, inputs = prepare(config, values)
    return create_run(config, values, overrides, inputs, flow_run)


def create_run(
    config: RunConfig,
    values: Mapping[str, Any],
    overrides: Sequence[str],
    inputs: Mapping[str, Any] | None = None,
    flow_run: str = "",
    reproduces: str = "",
) -> RunDirectory:
    """Create the directory of a new run with config.yaml and run.json, which identifies the run.

    `inputs` are the initial weights, checkpoint and dataset from `prepare`. `flow_run` is the id of the Prefect flow
    run. `reproduces` is the id of the original run if the new run is a reproduction. All three are stored in run.json.
    """
    origin = dict(inputs or {}) | ({"flow_run": flow_run} if flow_run else {})
    if reproduces:
        origin |= {"reproduces": reproduces}
    changes = code_diff()
    identity = {
        "run_id": secrets.token_hex(8),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "algo": config.algo.name,
        "env_id": config.env.id,
        "seed": config.seed,
        "config_hash": config_hash(config),
        **code_version(),
        "plugins": plugins.hashes(),
        "code_diff": hash_of_diff(changes),
        "host": socket.gethostname(),
    }
    run = RunDirectory.new(config.run_dir)
    try:
        typed = [*plugins.take_from(overrides)[1], *plugins.as_typed()]
        run.make("".join(f"{override}\n" for override in typed), identity | origin, dump(values), changes)
    except OSError as error:
        raise UserError(
            f"run_dir={config.run_dir}: cannot be written ({error.strerror}); choose another run_dir"
        ) from error
    return run


def change_run(run: RunDirectory, overrides: Sequence[str]) -> None:
    """Change config keys of an existing run. Keys that affect the training that is already done cannot change.

    Raises a `UserError` if a value is invalid, if a key cannot change, or if another process is executing the run.
    """
    run.refuse_second_writer()
    with run.writing():
        stored = config_of(run)
        config, values = compose_existing(run.config, overrides)
        # A run resumes in its own folder from its own checkpoints, so these keys would have no effect.
        for key in ("run_dir", "root_dir", "log_root"):
            if getattr(config, key) != getattr(stored, key):
                raise UserError(
                    f"{key}={getattr(config, key)}: cannot change for an existing run; to move the run, move its "
                    f"folder {run.path}"
                )
        chosen = config.checkpoint.resume_from
        if chosen != stored.checkpoint.resume_from:
            raise UserError(
                f"checkpoint.resume_from={spell(chosen)}: this run resumes from its own checkpoints; "
                f"to start from another checkpoint, use `shepherd train` with a new run_dir"
            )
        refuse_other_config(run, stored, config)
        if config.num_threads != stored.num_threads:
            numbers = config.num_threads, stored.num_threads
            log.warning("num_threads is %d, was %d: the run continues, but not with the same bits", *numbers)
        typed = [*run.read_overrides(), *overrides]
        write_text(run.overrides, "".join(f"{override}\n" for override in typed))
        _rewrite(run, values)


def rewrite_config(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Replace the config of a run by a config that has been composed and checked.

    The caller must ensure that the new config does not affect the training that is already done.
    """
    with run.writing():
        _rewrite(run, values)


def _rewrite(run: RunDirectory, values: Mapping[str, Any]) -> None:
    if summary := run.read_summary():
        # The run ended with the old config. It counts as finished only when the flow has ended again.
        write_json(run.summary, summary | {"status": "training"})
    write_text(run.config, dump(values))

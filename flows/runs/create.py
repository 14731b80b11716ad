"""Creation of run directories from composed configs."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from flows.config.compose import compose, dump
from flows.runs.check import prepare
from flows.runs.lineage import code_diff, code_version, hash_of_diff, host
from rlcore import plugins
from rlcore.config.groups import RunConfig
from rlcore.config.learning_half import config_hash
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory


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
        "host": host(),
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

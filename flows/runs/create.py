"""Creating run directories: the one place where a composed config becomes a folder."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose, dump
from flows.runs.check import prepared
from flows.runs.lineage import code_version
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.store.run_config import config_hash
from rlcore.system.durable import make_directory


def new_run(
    overrides: Sequence[str], flow_run: str = "", composed: tuple[RunConfig, Mapping[str, Any]] | None = None
) -> RunDirectory:
    """Compose a config, check it against the world, then make the folder of its run; a mistake leaves nothing behind.

    Args:
        overrides: as typed.
        flow_run: id of the Prefect flow run that makes it on a worker.
        composed: what `compose` made of the overrides, where that is known already.

    Returns:
        The run directory. Its config names what it starts from as a local folder; run.json has the URI too.
    """
    config, values = composed or compose(overrides)
    _refuse_existing(config)
    config, values, source = prepared(config, values)
    return create_run(config, values, overrides, source, flow_run)


def create_run(
    config: RunConfig,
    values: Mapping[str, Any],
    overrides: Sequence[str],
    source: Mapping[str, Any] | None = None,
    flow_run: str = "",
) -> RunDirectory:
    """Make the folder of a new run with its config and identity. config.yaml comes last: with it the run is there.

    run.json also has the `source` of the weights it starts from (given, uri, path, digest) and the `flow_run`.
    """
    run = RunDirectory(Path(config.run_dir).absolute())
    origin = ({"init_from": dict(source)} if source else {}) | ({"flow_run": flow_run} if flow_run else {})
    identity = {
        "run_id": secrets.token_hex(8),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "algo": config.algo.name,
        "env_id": config.env.id,
        "seed": config.seed,
        "config_hash": config_hash(config),
        **code_version(),
    }
    try:
        make_directory(run.path)
        with run.writing():
            _refuse_existing(config)
            write_text(run.overrides, "".join(f"{o}\n" for o in overrides))
            make_directory(run.media)
            write_json(run.identity, identity | origin)
            write_text(run.config, dump(values))
    except OSError as error:
        raise UserError(f"run_dir={config.run_dir}: cannot be written ({error.strerror})") from error
    return run


def _refuse_existing(config: RunConfig) -> None:
    if RunDirectory(config.run_dir).config.exists():
        raise UserError(
            f"run_dir={config.run_dir}: a run is there already; continue it with `shepherd resume {config.run_dir}` "
            "or choose another run_dir"
        )

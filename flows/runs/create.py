"""Creating run directories: the one place where a composed config becomes a folder, and where it is changed."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose_existing, dump
from flows.runs.lineage import code_version
from rlcore.system.durable import make_directory
from rlcore.errors import UserError
from rlcore.config.groups import RunConfig
from rlcore.store.run_config import config_hash
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.config.schema import spell
from flows.runs.check import prepared

log = logging.getLogger(__name__)


def new_run(config: RunConfig, values: Mapping[str, Any], overrides: Sequence[str]) -> RunDirectory:
    """Check a composed config against the world, then make the folder of its run; a mistake leaves nothing behind.

    Args:
        config: as composed; `init_from` may be a models:/ URI.
        values: the same, as plain values.
        overrides: as typed.

    Returns:
        The run directory. Its config names what it starts from as a local folder; run.json has the URI too.

    Raises:
        UserError: there is a run already, or the config cannot run here.
    """
    _refuse_existing(config)
    config, values, source = prepared(config, values)
    return create_run(config, values, overrides, source)






def create_run(
    config: RunConfig, values: Mapping[str, Any], overrides: Sequence[str], source: Mapping[str, Any] | None = None
) -> RunDirectory:
    """Make the folder of a new run with its config and identity. config.yaml comes last: with it the run is there.

    Args:
        config: the checked config.
        values: the same, composed and resolved, as plain values.
        overrides: as typed.
        source: given, uri, path and digest of the weights it starts from, for run.json.

    Returns:
        The run directory.

    Raises:
        UserError: there is a run already, or the folder cannot be made; names `run_dir`.
        RunError: the disk refused one of its files.
    """
    run = RunDirectory(Path(config.run_dir).absolute())
    try:
        make_directory(run.path)
        with run.writing():
            _refuse_existing(config)
            write_text(run.overrides, "".join(f"{o}\n" for o in overrides))
            make_directory(run.media)
            write_json(run.identity, _identity(config) | ({"init_from": dict(source)} if source else {}))
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


def _identity(config: RunConfig) -> dict[str, Any]:
    return {
        "run_id": secrets.token_hex(8),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "algo": config.algo.name,
        "env_id": config.env.id,
        "seed": config.seed,
        "config_hash": config_hash(config),
        **code_version(),
    }

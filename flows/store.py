"""Creating run directories: the one place where a composed config becomes a folder."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.lineage import code_version
from rlcore.errors import UserError
from rlcore.run.config import RunConfig, config_hash
from rlcore.run.directory import RunDirectory, write_json


def create_run(config: RunConfig, values: Mapping[str, Any], overrides: Sequence[str]) -> RunDirectory:
    """Make the folder of a new run with its config and identity.

    Args:
        config: the checked config.
        values: the same, composed and resolved, as plain values.
        overrides: as typed.

    Returns:
        The run directory.

    Raises:
        UserError: there is a run already, or the folder cannot be made; names `run_dir`.
    """
    run = RunDirectory(Path(config.run_dir).absolute())
    if run.config.exists():
        raise UserError(
            f"run_dir={config.run_dir}: a run is there already; continue it with `shepherd resume {config.run_dir}` "
            "or choose another run_dir"
        )
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        run.overrides.write_text("".join(f"{o}\n" for o in overrides))
        run.media.mkdir(exist_ok=True)
        write_json(run.identity, _identity(config))
        run.config.write_text(yaml.safe_dump(dict(values), sort_keys=False))
    except OSError as error:
        raise UserError(f"run_dir={config.run_dir}: cannot be written ({error.strerror})") from error
    return run


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

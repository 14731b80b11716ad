"""Loading of a run's configuration."""

from __future__ import annotations

from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.run_config import build_config
from rlcore.store.directory import RunDirectory


def config_of(run: RunDirectory) -> RunConfig:
    """Load and validate config.yaml of a run. Raises UserError, with the name of the file, if it is invalid."""
    try:
        return build_config(run.read_config())
    except UserError as error:
        if str(error).startswith(str(run.config)):
            raise
        raise UserError(f"{run.config}: {error}") from None

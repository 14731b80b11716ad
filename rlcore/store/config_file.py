"""The config of a run, as its folder keeps it."""

from __future__ import annotations

from rlcore.config.groups import RunConfig
from rlcore.run_config import build_config
from rlcore.store.directory import RunDirectory


def config_of(run: RunDirectory) -> RunConfig:
    """The checked config of a run."""
    return build_config(run.read_config())

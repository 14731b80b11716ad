"""checkpoint: make the present state of a run durable."""

from __future__ import annotations

from typing import Any

from flows.runs.trainer import release, trainer_for
from rlcore.store.directory import RunDirectory


def checkpoint(run: RunDirectory) -> dict[str, Any]:
    """Make the run's present state durable (a new run's first weights too): {path, env_steps, digest}."""
    try:
        return trainer_for(run).checkpoint()
    finally:
        release(run)

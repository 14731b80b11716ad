"""checkpoint: save the current state of a run."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from flows.runs.trainer import trainer_for
from rlcore.store.directory import RunDirectory


def checkpoint(run: RunDirectory, policy_steps: int | None = None) -> dict[str, Any] | None:
    """Save the run's current state, also that of a new run, and return path, policy_steps and digest.

    Returns None if the trainer died and its successor is not at `policy_steps`: train again.
    """
    trainer = trainer_for(run)
    if policy_steps not in (None, trainer.policy_steps):
        return None
    saved = trainer.checkpoint()
    emit("checkpoint", saved)
    return saved

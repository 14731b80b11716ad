"""checkpoint: save the current state of a run."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from flows.runs.trainer import trainer_for
from rlcore.store.directory import RunDirectory


def checkpoint(run: RunDirectory, policy_steps: int | None = None) -> dict[str, Any] | None:
    """Save the run's current state and return path, policy_steps and digest. A new run has a state, too.

    Returns None if the trainer has died and the new trainer is not at `policy_steps`; the caller then trains again.
    """
    trainer = trainer_for(run)
    if policy_steps not in (None, trainer.policy_steps):
        return None
    saved = trainer.checkpoint()
    emit("checkpoint", saved)
    return saved

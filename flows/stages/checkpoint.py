"""checkpoint: make the present state of a run durable."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from flows.runs.trainer import trainer_for
from rlcore.store.directory import RunDirectory


def checkpoint(run: RunDirectory, policy_steps: int | None = None) -> dict[str, Any] | None:
    """Make the run's present state durable (a new run's first weights too); gives path, policy_steps, digest.

    None where the trainer had died and another one stands elsewhere than at `policy_steps`: train again.
    """
    trainer = trainer_for(run)
    if policy_steps not in (None, trainer.policy_steps):
        return None
    saved = trainer.checkpoint()
    emit("checkpoint", saved)
    return saved

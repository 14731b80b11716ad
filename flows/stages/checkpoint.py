"""checkpoint: save the current state of a run."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from flows.runs.trainer import trainer_for
from rlcore.store.directory import RunDirectory


def checkpoint(run: RunDirectory, policy_steps: int | None = None) -> dict[str, Any] | None:
    """Save a checkpoint of a run, also before the first training step, and return path, policy_steps and digest.

    `policy_steps` is the policy step at which the checkpoint is expected; None: any. Returns None without saving if the
    run is at another step. This happens if the trainer process has died and a new one has resumed from an earlier
    checkpoint. The caller must then train to `policy_steps` again.
    """
    trainer = trainer_for(run)
    if policy_steps not in (None, trainer.policy_steps):
        return None
    saved = trainer.checkpoint()
    emit("checkpoint", saved)
    return saved

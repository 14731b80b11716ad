"""train, checkpoint, evaluate: drive the trainer process of a run from boundary to boundary."""

from __future__ import annotations

from flows.runs.milestones import ended
from flows.runs.trainer import Progress, trainer_for
from rlcore.store.directory import RunDirectory
from rlcore.train.boundary import Boundary


def train(run: RunDirectory, on_progress: Progress | None = None, on_event: Progress | None = None) -> Boundary:
    """Train a run to its end, making checkpoints and evaluations where they are due; the trainer stays alive.

    Args:
        run: prepared by make-env; a half-trained one continues.
        on_progress: called after each iteration.
        on_event: called with each checkpoint and evaluation.

    Returns:
        The last boundary.
    """
    while True:
        trainer = trainer_for(run)
        boundary = trainer.advance(on_progress)
        for name, action in (("checkpoint", trainer.checkpoint), ("evaluate", trainer.evaluate)):
            if name in boundary.due:
                said = action()
                if on_event is not None:
                    on_event(said)
        if boundary.done:
            ended(run, boundary)
            return boundary

"""train: advance a run to its next boundary, in the trainer process, which stays alive until the next."""

from __future__ import annotations

from flows.runs.listeners import emit
from flows.runs.milestones import note_baseline
from flows.runs.pruning import over
from flows.runs.trainer import trainer_for
from flows.stages.checkpoint import checkpoint
from flows.stages.evaluate import evaluate
from rlcore.store.directory import RunDirectory
from rlcore.train.boundary import Boundary


def advance(run: RunDirectory) -> Boundary | None:
    """Train a run that make-env prepared, new or half-trained, to the next boundary; None where training is over.

    What is due at a boundary is the caller's to do before the next call. One at which the trainer died comes again:
    another goes on from the last checkpoint.
    """
    return None if over(run) else to_boundary(run)


def to_boundary(run: RunDirectory) -> Boundary:
    """Train to the next boundary that the config sets, where training is not over."""
    note_baseline(run)
    return trainer_for(run).advance(lambda said: emit("progress", said))


def train(run: RunDirectory) -> Boundary:
    """Train to the end, with the checkpoints and evaluations that are due on the way; gives the last boundary."""
    while at := advance(run):
        if "checkpoint" in at.due:
            checkpoint(run, at.policy_steps)
        if "evaluate" in at.due:
            evaluate(run, at.policy_steps)
    last = trainer_for(run).at
    assert last is not None
    return last

"""Stage train: train a run to its next boundary, a point at which checkpoints and evaluations happen.

The trainer process stays alive between boundaries.
"""

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
    """Train a new or unfinished run to the next boundary; return None if training has finished.

    A boundary is a point at which checkpoints and evaluations happen. The caller must have executed make-env before,
    and executes the stages that are due at a boundary before the next call. If the trainer died at a boundary, a new
    trainer resumes from the last checkpoint and reaches the boundary again.
    """
    return None if over(run) else to_boundary(run)


def to_boundary(run: RunDirectory) -> Boundary:
    """Train an unfinished run to the next boundary.

    It is the next point at which the config requests a checkpoint or an evaluation.
    """
    note_baseline(run)
    return trainer_for(run).advance(lambda facts: emit("progress", facts))


def train(run: RunDirectory) -> Boundary:
    """Train to the end, including all checkpoints and evaluations.

    Return the last boundary, the end of the training.
    """
    while at := advance(run):
        if "checkpoint" in at.due:
            checkpoint(run, at.policy_steps)
        if "evaluate" in at.due:
            evaluate(run, at.policy_steps)
    last = trainer_for(run).at
    assert last is not None
    return last

"""Stage train: train a run to its next boundary, a point at which checkpoints and evaluations happen.

The trainer process stays alive between boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def training_loop(
    run: RunDirectory,
    advance: Callable[[RunDirectory], Boundary | None] = advance,
    checkpoint: Callable[[RunDirectory, int], Any] = checkpoint,
    evaluate: Callable[[RunDirectory, int], Any] = evaluate,
    stop: Callable[[Boundary], bool] = lambda at: False,
) -> None:
    """Train a run to its end; at each boundary, write the checkpoint and run the evaluation that are due.

    Args:
        run: a new or unfinished run for which make-env has been executed.
        advance: trains to the next boundary and returns it, or None if training has finished. A flow passes the Prefect
            tasks of the three stages.
        checkpoint: saves the state of the run at a number of policy steps.
        evaluate: evaluates the policy at a number of policy steps.
        stop: called after each boundary; the loop ends if it returns True.
    """
    while at := advance(run):
        if "checkpoint" in at.due:
            checkpoint(run, at.policy_steps)
        if "evaluate" in at.due:
            evaluate(run, at.policy_steps)
        if stop(at):
            return


def train(run: RunDirectory) -> Boundary:
    """Train to the end without Prefect, including all checkpoints and evaluations, and return the last boundary."""
    training_loop(run)
    last = trainer_for(run).at
    assert last is not None
    return last

"""Boundaries: the points between iterations at which a run is saved or evaluated, or ends.

Only the config and the stop conditions determine them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parent process imports this file and should not load these modules
    from rlcore.config.run import RunConfig

FINISHED, DRY_RUN = "finished", "dry_run"
STATUS = (FINISHED, DRY_RUN, "pruned")  # reasons that are also the status of the run


@dataclass(frozen=True)
class Boundary:
    """Point between two iterations at which a checkpoint or an evaluation is due, or training ends.

    Attributes:
        policy_steps: number of policy steps taken so far.
        due: what must be done at this point: "checkpoint", "evaluate", both (in this order), or nothing. An evaluation
            is always preceded by a checkpoint.
        done: True if training is over.
        reason: reason for the end: "finished", "dry_run", or a description of the stop condition that holds; None if
            training continues.
    """

    policy_steps: int
    due: tuple[str, ...]
    done: bool
    reason: str | None


def status_of(reason: str | None) -> str:
    """Return the status of a run whose training ended for a reason; the reason may describe a stop condition."""
    return "stopped_early" if reason and reason not in STATUS else reason or FINISHED


def next_stop(config: RunConfig, policy_steps: int) -> int:
    """Return the policy step of the next boundary (checkpoint, evaluation or end of the run) after `policy_steps`."""
    distances = config.checkpoint_every, config.evaluation_every
    return min(*((policy_steps // every + 1) * every for every in distances), budget(config))


def budget(config: RunConfig) -> int:
    """Return the number of policy steps of a run.

    This is `algo.total_steps`, rounded down to complete iterations, but at least one iteration.
    """
    return config.algo.budget(config.width)


def boundary_at(config: RunConfig, previous: int, policy_steps: int, reason: str | None) -> Boundary:
    """Return the boundary at `policy_steps`, with the checkpoint and evaluation that are due.

    Args:
        config: provides the intervals of checkpoints and evaluations.
        previous: policy steps at the previous boundary. A checkpoint or evaluation is due if it is scheduled at a step
            s with previous < s <= policy_steps.
        policy_steps: current policy steps. If training has used its budget, everything that is scheduled up to
            `algo.total_steps` is due, because the last incomplete iteration is not trained.
        reason: reason for the end of training; None if training continues.

    Returns:
        The boundary.
    """
    after = max(policy_steps, config.algo.step_limit) if reason == FINISHED else policy_steps

    def passes(every: int) -> bool:
        return after // every > previous // every

    evaluate = passes(config.evaluation_every)
    save = evaluate or passes(config.checkpoint_every)
    if reason is not None:
        dry = reason == DRY_RUN
        save, evaluate = config.checkpoint.save_last or evaluate or dry, evaluate and not dry
    due = tuple(name for name, is_due in (("checkpoint", save), ("evaluate", evaluate)) if is_due)
    return Boundary(policy_steps, due, reason is not None, reason)


def is_scheduled(config: RunConfig, policy_steps: int) -> bool:
    """Return True if `checkpoint.every` or the end of the budget requires a checkpoint at `policy_steps`.

    Checkpoints are also written before evaluations and after interruptions; for these, the result is False.
    """
    every, rows = config.checkpoint_every, config.algo.collect_length * config.width
    return policy_steps >= budget(config) or policy_steps // every > (policy_steps - rows) // every


def stop_reason(config: RunConfig, iterations: int, updates: int, condition: str | None = None) -> str | None:
    """Return the reason for the end of training, or None if training continues.

    Args:
        config: provides total_steps and dry_run.
        iterations: number of finished iterations.
        updates: number of gradient steps taken so far; a dry run ends after the first.
        condition: description of a stop condition that holds; None if none does.

    Returns:
        "finished", "dry_run", `condition` or None.
    """
    if iterations >= config.algo.iterations(config.width):
        return FINISHED
    if config.is_tried(updates):
        return DRY_RUN
    return condition

"""Stops of training for a moment between two iterations, and its end: decided by config and scores alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever drives a trainer reads this file and need not load what it loads
    from rlcore.config.groups import EarlyStopConfig, RunConfig


@dataclass(frozen=True)
class Boundary:
    """A moment between two iterations at which something is due.

    Attributes:
        policy_steps: taken so far.
        due: of "checkpoint" and "evaluate", in that order; an evaluation is always of a checkpoint.
        done: training is over.
        reason: why, when done: "finished", "dry_run", "target_return" or "plateau".
    """

    policy_steps: int
    due: tuple[str, ...]
    done: bool
    reason: str | None


def next_stop(config: RunConfig, policy_steps: int) -> int:
    """Policy steps after which the next boundary comes: the next multiple of the two distances, or the end."""
    distances = config.checkpoint_every, config.evaluation_every
    return min(*((policy_steps // every + 1) * every for every in distances), budget(config))


def budget(config: RunConfig) -> int:
    """Policy steps of a whole run: whole iterations, at least one."""
    return config.algo.budget(config.width)


def boundary_at(config: RunConfig, before: int, policy_steps: int, reason: str | None) -> Boundary:
    """The boundary at `policy_steps`.

    Args:
        config: says how often what is due.
        before: policy steps at the boundary before; what lay between is due now.
        policy_steps: now; checkpoints and evaluations are called by them. At the end of the budget all of
            `algo.total_steps` has been passed: what would have come in the rest, which makes no whole iteration, comes
            here.
        reason: why training is over, or None.

    Returns:
        What is due, and whether training is over.
    """
    after = max(policy_steps, config.algo.total_steps) if reason == "finished" else policy_steps

    def passes(every: int) -> bool:
        return after // every > before // every

    evaluate = passes(config.evaluation_every)
    save = evaluate or passes(config.checkpoint_every)
    if reason is not None:
        dry = reason == "dry_run"
        save, evaluate = config.checkpoint.save_last or evaluate or dry, evaluate and not dry
    due = tuple(name for name, is_due in (("checkpoint", save), ("evaluate", evaluate)) if is_due)
    return Boundary(policy_steps, due, reason is not None, reason)


def is_scheduled(config: RunConfig, policy_steps: int) -> bool:
    """Return whether `checkpoint.every`, or the end of the budget, asks for a checkpoint here.

    An evaluation or an interruption makes others.
    """
    every, rows = config.checkpoint_every, config.algo.collect_length * config.width
    return policy_steps >= budget(config) or policy_steps // every > (policy_steps - rows) // every


def stop_reason(
    config: RunConfig, iterations: int, updates: int, policy_steps: int, scores: Mapping[int, float]
) -> str | None:
    """Reason why training is over, or None where it is not.

    Args:
        config: total_steps, dry_run and early_stop.
        iterations: done so far.
        updates: gradient steps taken so far; the first is the end of a dry run.
        policy_steps: taken so far.
        scores: mean returns of the evaluations by policy steps; those beyond `policy_steps` do not count.

    Returns:
        "finished", "dry_run", "target_return", "plateau" or None.
    """
    if iterations >= config.algo.iterations(config.width):
        return "finished"
    if config.is_tried(updates):
        return "dry_run"
    # A log may reach beyond the checkpoint that was resumed.
    return _why_stop_early(config.early_stop, [scores[at] for at in sorted(scores) if at <= policy_steps])


def _why_stop_early(rule: EarlyStopConfig, scores: list[float]) -> str | None:
    if rule.target_return is not None and any(score >= rule.target_return for score in scores):
        return "target_return"
    best, stale = -math.inf, 0
    for score in scores:
        stale = 0 if score > best + rule.min_delta else stale + 1
        best = max(best, score)
    return "plateau" if rule.patience is not None and stale >= rule.patience else None

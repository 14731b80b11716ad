"""Where training stops for a moment between two iterations, and where it ends: decided by config and scores alone."""

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
        env_steps: taken so far.
        due: of "checkpoint" and "evaluate", in that order; an evaluation is always of a checkpoint.
        done: training is over.
        reason: why, when done: "finished", "dry_run", "target_return" or "plateau".
    """

    env_steps: int
    due: tuple[str, ...]
    done: bool
    reason: str | None


def next_stop(config: RunConfig, env_steps: int) -> int:
    """Env steps after which the next boundary comes: the next multiple of the two distances, or the end."""
    distances = config.checkpoint_every, config.evaluation_every
    return min(*((env_steps // every + 1) * every for every in distances), config.algo.total_steps)


def boundary_at(config: RunConfig, before: int, env_steps: int, reason: str | None) -> Boundary:
    """The boundary at `env_steps`.

    Args:
        config: says how often what is due.
        before: env steps at the boundary before; what lay between is due now.
        env_steps: taken so far.
        reason: why training is over, or None.

    Returns:
        What is due, and whether training is over.
    """

    def passed(every: int) -> bool:
        return env_steps // every > before // every

    evaluate = passed(config.evaluation_every)
    save = evaluate or passed(config.checkpoint_every)
    if reason is not None:
        save, evaluate = config.checkpoint.save_last or evaluate, evaluate and reason != "dry_run"
    due = tuple(name for name, is_due in (("checkpoint", save), ("evaluate", evaluate)) if is_due)
    return Boundary(env_steps, due, reason is not None, reason)


def why_over(config: RunConfig, env_steps: int, iterations: int, scores: Mapping[int, float]) -> str | None:
    """Why training is over, or None where it is not.

    Args:
        config: total_steps, dry_run and early_stop.
        env_steps: taken so far.
        iterations: done so far.
        scores: mean returns of the evaluations by env steps; those beyond `env_steps` do not count.

    Returns:
        "finished", "dry_run", "target_return", "plateau" or None.
    """
    if env_steps >= config.algo.total_steps:
        return "finished"
    if config.dry_run and iterations:
        return "dry_run"
    # A log may reach beyond the checkpoint that was resumed.
    return _stopped_early(config.early_stop, [scores[at] for at in sorted(scores) if at <= env_steps])


def _stopped_early(rule: EarlyStopConfig, scores: list[float]) -> str | None:
    if rule.target_return is not None and any(score >= rule.target_return for score in scores):
        return "target_return"
    best, stale = -math.inf, 0
    for score in scores:
        stale = 0 if score > best + rule.min_delta else stale + 1
        best = max(best, score)
    return "plateau" if rule.patience is not None and stale >= rule.patience else None

"""Schedules: learning rates and other coefficients as functions of the number of policy steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Points = Sequence[Sequence[float]]


def anneal(initial: float, policy_steps: int, total_steps: int) -> float:
    """Return a coefficient that decreases linearly from `initial` at step 0 to 0 at `total_steps`, and then stays 0."""
    return initial * max(0.0, 1.0 - policy_steps / total_steps)


def piecewise(points: Points, policy_steps: int, kind: str = "linear") -> float:
    """Evaluate a schedule at `policy_steps`.

    Args:
        points: (policy steps, value) pairs, ordered by policy steps.
        policy_steps: number of policy steps at which the schedule is evaluated. Before the first pair, the result is
            the first value; after the last pair, it is the last value.
        kind: "linear" interpolates between pairs; "step" keeps each value until the next pair.

    Returns:
        The value of the schedule.
    """
    before = points[0]
    for after in points:
        if policy_steps < after[0]:
            if kind == "step" or after is before:
                return float(before[1])
            share = (policy_steps - before[0]) / (after[0] - before[0])
            return float(before[1] + share * (after[1] - before[1]))
        before = after
    return float(before[1])


def check_points(points: Points) -> str | None:
    """Validate the (policy steps, value) pairs of a schedule; return an error message, or None if they are valid."""
    if not points:
        return "needs at least one [policy steps, value] pair"
    steps = [p[0] for p in points]
    if any(b <= a for a, b in pairwise(steps)) or steps[0] < 0:
        return "the policy steps of the [policy steps, value] pairs must increase and must not be negative"
    return None

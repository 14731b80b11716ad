"""The metric points of an event log, which every tracking backend gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Event = dict[str, Any]
Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, env steps

# An evaluation while training and the final one may be of the same step: other seeds, other numbers of episodes.
WHILE_TRAINING = {"greedy": "Evaluation/greedy_mean"}
FINAL = {"greedy": "Test/cumulative_reward", "stochastic": "Test/cumulative_reward_stochastic"}


def points(events: Iterable[Event]) -> Iterator[Point]:
    """Every metric point of an event log, in its order; what was written twice after a kill comes once."""
    seen: set[tuple[str, int, float]] = set()
    for event in events:
        step, when, values = int(event.get("env_steps", 0)), int(event["time"] * 1000), {}
        if event["kind"] == "metrics":
            values = event["values"]
        elif event["kind"] == "baseline":
            values = {"Evaluation/baseline_mean": event["mean"]}
        elif event["kind"] == "evaluation":
            names = FINAL if event["final"] else WHILE_TRAINING
            values = {name: event[mode]["mean"] for mode, name in names.items() if event.get(mode)}
        for name, value in values.items():
            if value is not None and (name, step, value) not in seen:
                seen.add((name, step, value))
                yield name, float(value), when, step

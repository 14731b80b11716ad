"""The metric points of an event log, which every tracking backend gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, env steps


def points(events: list[dict[str, Any]]) -> Iterator[Point]:
    """Every metric point of an event log, the first of each (metric, step)."""
    seen: set[tuple[str, int]] = set()
    for event in events:
        step, when = int(event.get("env_steps", 0)), int(event["time"] * 1000)
        for name, value in _values(event):
            if value is not None and (name, step) not in seen:
                seen.add((name, step))
                yield name, float(value), when, step


def _values(event: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    if event["kind"] == "metrics":
        yield from event["values"].items()
    elif event["kind"] == "baseline":
        yield "Evaluation/baseline_mean", event["mean"]
    elif event["kind"] == "evaluation":
        for mode in ("greedy", "stochastic"):
            if event.get(mode):
                yield f"Evaluation/{mode}_mean", event[mode]["mean"]
        if event.get("final") and event.get("greedy"):
            yield "Test/cumulative_reward", event["greedy"]["mean"]

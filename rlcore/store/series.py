"""The series of a run: its event log as points, for MLflow, TensorBoard, CSV, DVC, pictures and comparisons alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Event = dict[str, Any]
Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, policy steps

RETURN, LENGTH = "Rewards/rew_avg", "Game/ep_len_avg"  # of the episodes that ended in a window while training
BASELINE = "Evaluation/random_mean"  # sorts behind the return, which is to be the first chart in MLflow
# Seconds of training until there, over all processes that led the run one after the other; of a processor, the main
# process's alone.
WALL, CPU = "Time/wall_s", "Time/cpu_s"
CLOCKS = (WALL, CPU)
# An evaluation while training and the final one may be of the same step: other seeds, other numbers of episodes.
WHILE_TRAINING = {"greedy": "Evaluation/greedy_mean"}
FINAL = {"greedy": "Test/cumulative_reward", "stochastic": "Test/cumulative_reward_stochastic"}


def points(events: Iterable[Event], told: set[tuple[str, int, float]] | None = None) -> Iterator[Point]:
    """Every metric point of the events of a log, in its order, each once.

    Who goes on with the events that came since passes the same set as `told` each time.
    """
    told = set() if told is None else told
    for event in events:
        step, when = int(event.get("policy_steps", 0)), int(event["time"] * 1000)
        for name, value in _values(event).items():
            if value is None:
                continue
            # Values of a window come once, but for the clock: an evaluation may come at the same step, a moment later.
            if name in CLOCKS or event["kind"] != "metrics":
                point = (name, step, 0.0 if name in CLOCKS else value)
                if point in told:
                    continue
                told.add(point)
            yield name, float(value), when, step


def lines(events: Iterable[Event]) -> dict[str, list[tuple[int, float]]]:
    """Points by metric: (policy_steps, value), ascending."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, value, _, step in points(events):
        found.setdefault(name, []).append((step, value))
    return {name: sorted(line, key=lambda point: point[0]) for name, line in found.items()}


def evaluations(events: Iterable[Event]) -> list[Event]:
    """The evaluations while training with their intervals, in the log's order."""
    return [e for e in events if e["kind"] == "evaluation" and not e["final"] and e.get("greedy")]


def _values(event: Event) -> dict[str, Any]:
    clock = {name: event[key] for name in CLOCKS if (key := name.removeprefix("Time/")) in event}
    if event["kind"] == "metrics":
        return event["values"] | clock
    if event["kind"] == "baseline":
        return {BASELINE: event["mean"]}
    if event["kind"] == "evaluation":
        names = FINAL if event["final"] else WHILE_TRAINING
        return {name: event[mode]["mean"] for mode, name in names.items() if event.get(mode)} | clock
    return {}

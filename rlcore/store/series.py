"""The series of a run: its event log as points, for MLflow, TensorBoard, CSV, DVC, pictures and comparisons alike."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from rlcore.store.events import Steps

Event = dict[str, Any]
Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, policy steps

RETURN, LENGTH = "Rewards/rew_avg", "Game/ep_len_avg"  # of the episodes that ended in a window while training
BASELINE = "Evaluation/random_mean"  # sorts behind the return, which is to be the first chart in MLflow
# Seconds of training until there, over all processes that led the run one after the other; of a processor, those of
# environments and ranks that are processes too.
WALL, CPU = "Time/wall_s", "Time/cpu_s"
CLOCKS = (WALL, CPU)
# An evaluation while training and the final one may be of the same step: other seeds, other numbers of episodes.
WHILE_TRAINING = {"greedy": "Evaluation/greedy_mean"}
FINAL = {"greedy": "Test/cumulative_reward", "stochastic": "Test/cumulative_reward_stochastic"}


class Told:
    """Points that were given already, of those that a log may say twice."""

    def __init__(self) -> None:
        self._clocks = {name: Steps() for name in CLOCKS}
        self._others: set[tuple[str, int, float]] = set()

    def add(self, name: str, step: int, value: float) -> bool:
        """Add a point; return True if it is new. A clock has one point a step, whatever its value."""
        if name in self._clocks:
            return self._clocks[name].add(step)
        known = len(self._others)
        self._others.add((name, step, value))
        return len(self._others) > known


def points(events: Iterable[Event], told: Told | None = None) -> Iterator[Point]:
    """Every metric point of the events of a log, in its order, each once.

    Who goes on with the events that came since passes the same `told` each time.
    """
    told = told or Told()
    for event in events:
        step, when = int(event.get("policy_steps", 0)), int(event.get("time", 0) * 1000)
        for name, value in _values(event).items():
            if not isinstance(value, int | float):
                continue
            # Values of a window come once, but for the clock: an evaluation may come at the same step, a moment later.
            if (name in CLOCKS or event["kind"] != "metrics") and not told.add(name, step, value):
                continue
            yield name, float(value), when, step


class Line(Sequence[tuple[int, float]]):
    """Points (policy_steps, value) of one metric, ascending, in 16 bytes each."""

    def __init__(self, points: Iterable[tuple[int, float]] = ()) -> None:
        self._steps, self._values = array("q"), array("d")
        for step, value in points:
            self.add(step, value)

    def add(self, step: int, value: float) -> None:
        """Add a point, after those of the same step."""
        place = bisect_right(self._steps, step) if self._steps and step < self._steps[-1] else len(self._steps)
        self._steps.insert(place, step)
        self._values.insert(place, value)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> Line: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | Line:
        """Return a point, or the points of a slice."""
        if isinstance(index, int):
            return self._steps[index], self._values[index]
        return Line(zip(self._steps[index], self._values[index], strict=True))

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Iterate over the points."""
        return zip(self._steps, self._values, strict=True)

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of points."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def lines(events: Iterable[Event], kept: Sequence[str] | None = None) -> dict[str, Line]:
    """Points by metric, of all metrics or of those that are `kept`."""
    found: dict[str, Line] = {}
    for name, value, _, step in points(events):
        if kept is None or name in kept:
            found.setdefault(name, Line()).add(step, value)
    return found


def evaluations(events: Iterable[Event]) -> list[Event]:
    """The evaluations while training with their intervals, in the log's order."""
    return [e for e in events if e["kind"] == "evaluation" and not e["final"] and e.get("greedy")]


def _values(event: Event) -> dict[str, Any]:
    clock = {name: event[key] for name in CLOCKS if (key := name.removeprefix("Time/")) in event}
    if event["kind"] == "metrics":
        return event["values"] | clock
    if event["kind"] == "baseline":
        return {BASELINE: event.get("mean")}
    if event["kind"] == "evaluation":
        names = FINAL if event["final"] else WHILE_TRAINING
        return {name: event[mode].get("mean") for mode, name in names.items() if event.get(mode)} | clock
    return {}

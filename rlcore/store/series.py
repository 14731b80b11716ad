"""Time series of a run's metrics, read from its event log for experiment trackers, CSV, DVC, plots and comparisons."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from rlcore.config.info_keys import GAME, RANDOM, evaluation_metric
from rlcore.config.stop import EVALUATION_RETURN
from rlcore.store.events import StepSet

Event = dict[str, Any]
Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, policy steps

RETURN, LENGTH = "Rewards/rew_avg", "Game/ep_len_avg"  # averages over the training episodes of a logging window
BASELINE = "Evaluation/random_mean"  # sorts after the evaluation return, so that MLflow shows that chart first
# Seconds of training so far, summed over resumes of the run. CPU time includes the processes of environments and ranks.
WALL, CPU = "Time/wall_s", "Time/cpu_s"
CLOCKS = (WALL, CPU)
# The two evaluations have different names: an evaluation during training and the final one can be at the same step, but
# use different seeds.
WHILE_TRAINING = {"greedy": EVALUATION_RETURN}
FINAL = {"greedy": "Test/cumulative_reward", "stochastic": "Test/cumulative_reward_stochastic"}


class Quantity(NamedTuple):
    """Quantity by which runs are judged, and the names of its metrics.

    It is the return, a number from `info`, or a metric that a callback logs after evaluations.

    Attributes:
        name: name of a number that `env.info_keys` selects, or of a metric that a callback logs; None for the return.
    """

    name: str | None = None

    @property
    def words(self) -> str:
        """Name of the quantity for messages and reports."""
        return self.name or "return"

    @property
    def training(self) -> str:
        """Metric of training episodes."""
        return f"{GAME}{self.name}" if self.name else RETURN

    @property
    def evaluation(self) -> str:
        """Metric of greedy evaluations during training."""
        return evaluation_metric(self.name) if self.name else WHILE_TRAINING["greedy"]

    @property
    def final(self) -> str:
        """Metric of the final evaluation with greedy actions."""
        return evaluation_metric(self.name, final=True) if self.name else FINAL["greedy"]

    @property
    def baseline(self) -> str:
        """Metric of the random policy."""
        return f"{RANDOM}{self.name}" if self.name else BASELINE

    def mean(self, result: Mapping[str, Any]) -> float | None:
        """Return the mean in the result of an evaluation; None if no episode had the number."""
        return info_means(result).get(self.name) if self.name else result["mean"]


EPISODE_RETURN = Quantity()


class PointFilter:
    """Filter for metric values: a value that was logged before, for example by a resumed run, is skipped."""

    def __init__(self) -> None:
        self._clocks = {name: StepSet() for name in CLOCKS}
        self._others: set[tuple[str, int, float]] = set()

    def add(self, name: str, step: int, value: float) -> bool:
        """Add a value of a metric; return False if an equal one was added before.

        Values are equal if metric, step and number are equal. For the metrics of elapsed time (`CLOCKS`), metric and
        step are enough, because a resumed run measures other times.

        Args:
            name: name of the metric.
            step: policy steps at which the value was logged.
            value: the number.

        Returns:
            True if the value is new.
        """
        if name in self._clocks:
            return self._clocks[name].add(step)
        known = len(self._others)
        self._others.add((name, step, value))
        return len(self._others) > known


def points(events: Iterable[Event], seen: PointFilter | None = None) -> Iterator[Point]:
    """Yield all metric values in events, in order and without duplicates.

    Args:
        events: events of a log. A growing log can be processed in several calls.
        seen: filter with the values of previous calls, if there are any; it is updated.

    Yields:
        `Point`: metric, value, milliseconds since 1970, policy steps.
    """
    seen = seen or PointFilter()
    for event in events:
        step, when = int(event.get("policy_steps", 0)), int(event.get("time", 0) * 1000)
        for name, value in _values(event).items():
            if not isinstance(value, int | float):
                continue
            # Metrics events have no duplicates except of clocks: an evaluation at the same step has clocks too.
            if (name in CLOCKS or event["kind"] != "metrics") and not seen.add(name, step, value):
                continue
            yield name, float(value), when, step


class Line(Sequence[tuple[int, float]]):
    """Time series of one metric: pairs (policy_steps, value) in ascending order of policy steps, 16 bytes per pair."""

    def __init__(self, points: Iterable[tuple[int, float]] = ()) -> None:
        self._steps, self._values = array("q"), array("d")
        for step, value in points:
            self.add(step, value)

    def add(self, step: int, value: float) -> None:
        """Insert a value, after all values with as many or fewer policy steps."""
        place = bisect_right(self._steps, step) if self._steps and step < self._steps[-1] else len(self._steps)
        self._steps.insert(place, step)
        self._values.insert(place, value)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> Line: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | Line:
        """Return the pair (policy_steps, value) at an index, or the part of the time series in a slice."""
        if isinstance(index, int):
            return self._steps[index], self._values[index]
        return Line(zip(self._steps[index], self._values[index], strict=True))

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Iterate over the pairs (policy_steps, value)."""
        return zip(self._steps, self._values, strict=True)

    def __eq__(self, other: object) -> bool:
        """Return True if `other` is a sequence of the same pairs."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def lines(events: Iterable[Event], kept: Sequence[str] | None = None) -> dict[str, Line]:
    """Return the time series of all metrics in events, or only of the metrics in `kept`, by metric name."""
    found: dict[str, Line] = {}
    for name, value, _, step in points(events):
        if kept is None or name in kept:
            found.setdefault(name, Line()).add(step, value)
    return found


def evaluations(events: Iterable[Event]) -> list[Event]:
    """Return the evaluation events during training, without the final evaluation, in the order of the log."""
    return [e for e in events if e["kind"] == "evaluation" and not e["final"] and e.get("greedy")]


def info_means(result: Mapping[str, Any] | None) -> dict[str, float]:
    """Return name -> mean of the numbers that `env.info_keys` selects, for the result of an evaluation."""
    return {name: one["mean"] for name, one in ((result or {}).get("info") or {}).items()}


def evaluation_means(evaluations: Iterable[Event]) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
    """Return policy steps -> mean return, and policy steps -> `info_means`, of evaluations during training."""
    results = {event["policy_steps"]: event["greedy"] for event in evaluations}
    scores = {steps: float(greedy["mean"]) for steps, greedy in results.items()}
    return scores, {steps: info_means(greedy) for steps, greedy in results.items()}


def _values(event: Event) -> dict[str, Any]:
    clock = {name: event[key] for name in CLOCKS if (key := name.removeprefix("Time/")) in event}
    if event["kind"] == "metrics":
        return event["values"] | clock
    if event["kind"] == "callback":
        return event["values"]
    if event["kind"] == "baseline":
        return {BASELINE: event.get("mean")} | {f"{RANDOM}{name}": mean for name, mean in info_means(event).items()}
    if event["kind"] == "evaluation":
        names = FINAL if event["final"] else WHILE_TRAINING
        found = {name: event[mode].get("mean") for mode, name in names.items() if event.get(mode)}
        for mode in names:
            means = info_means(event.get(mode))
            found |= {evaluation_metric(name, event["final"], mode): mean for name, mean in means.items()}
        return found | clock
    return {}

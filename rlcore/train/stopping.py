"""Stop conditions: functions of the metrics that end training before `algo.total_steps`.

    trainer.run(stop=[Plateau("Rewards/rew_avg", patience=10, rtol=0.05), UpperBound("Rewards/rew_avg", 475)])

A condition is called with the metrics of an iteration, or with those of an evaluation, as a mapping from name to
number. A metric may be missing in an iteration: the mean return, for example, if no episode has ended. A condition then
keeps its last result. The conditions on one metric return what the conditions of rl8 1.0.0 return on the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlcore.config.stop import UNKNOWN
from rlcore.train.plugin_instance import State, calling, read_state, restore_state


class Condition(Protocol):
    """Function of the metrics that returns True to end training; a user's condition may have a state.

    The state is stored in checkpoints. It consists of the instance's attributes, which must be JSON values, or of the
    result of its method `state_dict`, which needs `load_state_dict` then.
    """

    def __call__(self, metrics: Mapping[str, float], /) -> bool:
        """Return True if training must end, given the metrics of an iteration or of an evaluation."""
        ...


class MetricCondition:
    """Base class of conditions on one metric, with the name `metric`."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.met = False  # last result, which is kept while the metric is missing
        self.value: float | None = None  # last value; None before the first one

    def __call__(self, metrics: Mapping[str, float], /) -> bool:
        """Return True if the condition holds after these metrics; if the metric is missing, return the last result."""
        if self.metric in metrics:
            self.value = float(metrics[self.metric])
            self.met = self.holds(self.value)
        return self.met

    def holds(self, value: float) -> bool:
        """Return True if the condition holds after the next value of the metric."""
        raise NotImplementedError

    @property
    def reads(self) -> frozenset[str]:
        """Names of the metrics that the condition reads."""
        return frozenset({self.metric})

    def state_dict(self) -> State:
        """Return the attributes of the instance, which are JSON values."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes that `state_dict` returned."""
        vars(self).update(state)


class UpperBound(MetricCondition):
    """Condition that holds if a metric is at least `bound` (rl8's `HitsUpperBound`)."""

    def __init__(self, metric: str, value: float) -> None:
        super().__init__(metric)
        self.bound = value

    def holds(self, value: float) -> bool:
        """Return True if the value is at least the bound."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"upper_bound: {self.metric} = {self.value:.6g}, which is at least {self.bound:g}"


class LowerBound(MetricCondition):
    """Condition that holds if a metric is at most `bound` (rl8's `HitsLowerBound`)."""

    def __init__(self, metric: str, value: float) -> None:
        super().__init__(metric)
        self.bound = value

    def holds(self, value: float) -> bool:
        """Return True if the value is at most the bound."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"lower_bound: {self.metric} = {self.value:.6g}, which is at most {self.bound:g}"


class Plateau(MetricCondition):
    """Condition that holds if a metric changed little `patience` times in a row (rl8's `Plateaus`).

    A change from v to w is small if |w - v| <= rtol |v|. As in rl8, the value before the first one is 0.
    """

    def __init__(self, metric: str, patience: int = 5, rtol: float = 1e-3) -> None:
        super().__init__(metric)
        self.patience, self.rtol = patience, rtol
        self.previous, self.count = 0.0, 0

    def holds(self, value: float) -> bool:
        """Return True if this and the `patience` - 1 previous changes are small."""
        small = abs(value - self.previous) <= self.rtol * abs(self.previous)
        self.previous, self.count = value, self.count + 1 if small else 0
        return self.count >= self.patience

    def __str__(self) -> str:
        times = f"{self.count} time{'s' * (self.count > 1)} in a row"
        return f"plateau: {self.metric} changed by at most {100 * self.rtol:g} % {times}"


class StopsIncreasing(MetricCondition):
    """Condition that holds if a metric had no new maximum `patience` times in a row (rl8's `StopsIncreasing`).

    A value counts as a new maximum only if it exceeds the largest value so far by more than `min_delta`.
    """

    def __init__(self, metric: str, patience: int = 5, min_delta: float = 0.0) -> None:
        super().__init__(metric)
        self.patience, self.min_delta = patience, min_delta
        self.best, self.count = -math.inf, 0

    def improves(self, value: float, best: float) -> bool:
        """Return True if a value is better than `best`."""
        return value > best

    def holds(self, value: float) -> bool:
        """Return True if this and the `patience` - 1 previous values are no improvement."""
        needed = self.best + self.min_delta if self.improves(1, 0) else self.best - self.min_delta
        self.count = 0 if self.improves(value, needed) else self.count + 1
        if self.improves(value, self.best):
            self.best = value
        return self.count >= self.patience

    def __str__(self) -> str:
        by = f" by more than {self.min_delta:g}" if self.min_delta else ""
        name = "stops_increasing" if self.improves(1, 0) else "stops_decreasing"
        times = f"{self.count} time{'s' * (self.count > 1)} in a row"
        return f"{name}: {self.metric} has not improved on {self.best:.6g}{by} {times}"

    def state_dict(self) -> State:
        """Return the attributes of the instance; `best` is None before the first value, as JSON has no infinity."""
        return super().state_dict() | {"best": self.best if math.isfinite(self.best) else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes that `state_dict` returned."""
        super().load_state_dict({key: value for key, value in state.items() if key != "best" or value is not None})


class StopsDecreasing(StopsIncreasing):
    """Condition that holds if a metric had no new minimum `patience` times in a row (rl8's `StopsDecreasing`)."""

    def __init__(self, metric: str, patience: int = 5, min_delta: float = 0.0) -> None:
        super().__init__(metric, patience, min_delta)
        self.best = math.inf

    def improves(self, value: float, best: float) -> bool:
        """Return True if a value is better than `best`."""
        return value < best


class All:
    """Condition that holds if all of its conditions hold at the same time (rl8's `And`)."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = [with_state(condition) for condition in conditions]

    def __call__(self, metrics: Mapping[str, float], /) -> bool:
        """Return True if all conditions hold after these metrics; each of them is called."""
        return all([condition(metrics) for condition in self.conditions])

    @property
    def met(self) -> bool:
        """Last result."""
        return all(condition.met for condition in self.conditions)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the metrics that the conditions read."""
        return frozenset[str]().union(*(condition.reads for condition in self.conditions))

    def state_dict(self) -> State:
        """Return the states of the conditions."""
        return {"conditions": [condition.state_dict() for condition in self.conditions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states that `state_dict` returned."""
        for condition, stored in zip(self.conditions, state["conditions"], strict=True):
            condition.load_state_dict(stored)

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))


class UserCondition:
    """Condition of a user: any function of the metrics, with the result and the state that a checkpoint needs.

    Args:
        inner: the user's function, for example an instance of a class with `__call__(metrics)`.
        name: name of its class, for messages.
    """

    def __init__(self, inner: Condition, name: str) -> None:
        self.inner, self.name, self.met = inner, name, False
        self.reads = frozenset({UNKNOWN})

    def __call__(self, metrics: Mapping[str, float], /) -> bool:
        """Return True if the user's function returns True; raise a RunError if it fails."""
        with calling(f"stop condition {self.name}:"):
            self.met = bool(self.inner(dict(metrics)))
        return self.met

    def state_dict(self) -> State:
        """Return the last result and the state of the user's function; raise a RunError if it is not JSON."""
        with calling(f"stop condition {self.name}:"):
            return {"met": self.met, "inner": read_state(self.inner)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.met = state["met"]
        with calling(f"stop condition {self.name}:"):
            restore_state(self.inner, state["inner"])

    def __str__(self) -> str:
        return self.name


class StopRequests:
    """Condition that holds if a callback has requested the end of training (`rlcore.train.callbacks`).

    Args:
        names: name of each callback in the config -> name of its class, for messages.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.reasons: dict[str, str] = {}  # name of a callback -> reason of its first request
        self.reads = frozenset({UNKNOWN})

    def request(self, name: str, reason: str) -> None:
        """Note the request of a callback."""
        self.reasons.setdefault(name, reason)

    def __call__(self, metrics: Mapping[str, float], /) -> bool:
        """Return True if there is a request; the metrics are not read."""
        return self.met

    @property
    def met(self) -> bool:
        """True if there is a request."""
        return bool(self.reasons)

    def state_dict(self) -> State:
        """Return the requests."""
        return {"reasons": dict(self.reasons)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the requests of the callbacks that the config still has."""
        self.reasons = {name: reason for name, reason in state["reasons"].items() if name in self.names}

    def __str__(self) -> str:
        return "; ".join(f"callback {self.names[name]}: {reason}" for name, reason in self.reasons.items())


OwnCondition = MetricCondition | All | UserCondition | StopRequests


def with_state(condition: Condition) -> OwnCondition:
    """Return a condition of this module unchanged, and any other one as a `UserCondition`."""
    if isinstance(condition, OwnCondition):
        return condition
    return UserCondition(condition, type(condition).__name__)

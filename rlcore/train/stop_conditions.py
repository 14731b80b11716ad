"""Stop conditions of a training: they are called with its metrics, checked, saved, and restored.

stop = StopConditions([UpperBound("Rewards/rew_avg", 475)])
stop.add_iteration(metrics, policy_steps=4096, env_steps=4080, updates=32)
stop.add_evaluation(policy_steps=4096, score=470.0)
print(stop.reason)  # None, or the condition that holds
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rlcore.config.info_keys import evaluation_metric, metric_names
from rlcore.config.plugin_class import TARGET
from rlcore.config.stop import (
    ALL,
    COMMON,
    EVALUATION_RETURN,
    KEY,
    UNKNOWN,
    reads_evaluations,
    refuse_unknown_metrics,
)
from rlcore.train.metrics import SURE
from rlcore.train.plugin_instance import calling, create
from rlcore.train.stopping import (
    All,
    Condition,
    LowerBound,
    MetricCondition,
    OwnCondition,
    Plateau,
    State,
    StopRequests,
    StopsDecreasing,
    StopsIncreasing,
    UpperBound,
    UserCondition,
    with_state,
)

CONDITIONS: dict[str, type[MetricCondition]] = {
    "upper_bound": UpperBound,
    "lower_bound": LowerBound,
    "plateau": Plateau,
    "stops_increasing": StopsIncreasing,
    "stops_decreasing": StopsDecreasing,
}


class StopConditions:
    """Stop conditions of a training; training ends when one of them holds.

    Args:
        conditions: the conditions.
        names: a text for each condition, by which its saved state is found again; None: the names of the classes.
        info_keys: value of `env.info_keys`, whose metrics the conditions can read.
    """

    def __init__(
        self, conditions: Iterable[Condition] = (), names: Sequence[str] | None = None, info_keys: Sequence[str] = ()
    ) -> None:
        self.conditions = [with_state(condition) for condition in conditions]
        self.names = [type(condition).__name__ for condition in self.conditions] if names is None else names
        self.evaluated = -1  # policy steps of the last evaluation that the conditions have read; -1 before the first
        self._reads = frozenset[str]().union(*(condition.reads for condition in self.conditions))
        self._missing = {*self._reads} - {*COMMON, UNKNOWN, *metric_names(info_keys)}
        self._first: int | None = None  # gradient steps up to the first iteration that the conditions have read

    @classmethod
    def from_config(
        cls,
        stated: Sequence[Mapping[str, Any]],
        info_keys: Sequence[str] = (),
        requests: StopRequests | None = None,
    ) -> StopConditions:
        """Create the conditions of the config key `stop`.

        Args:
            stated: value of the key.
            info_keys: value of `env.info_keys`.
            requests: requests of callbacks to end training; None if there are no callbacks.

        Returns:
            The conditions.
        """
        conditions: list[Condition] = [make_condition(condition) for condition in stated]
        names = [json.dumps(condition, sort_keys=True) for condition in stated]
        if requests is not None:
            conditions, names = [*conditions, requests], [*names, "callbacks"]
        found = cls(conditions, names, info_keys)
        if requests is not None:
            found._missing.clear()  # callbacks may log these metrics later
        return found

    @property
    def reason(self) -> str | None:
        """Description of the first condition that holds; None if none does."""
        return next((str(condition) for condition in self.conditions if condition.met), None)

    @property
    def reads_training(self) -> bool:
        """True if a condition reads the metrics of iterations; False if all of them read only evaluations."""
        return any(not reads_evaluations(metric) for metric in self._reads)

    def update(self, metrics: Mapping[str, float]) -> str | None:
        """Call all conditions with metrics, and return `reason`."""
        for condition in self.conditions:
            condition(metrics)
        return self.reason

    def add_iteration(self, metrics: Mapping[str, float], **counters: int) -> str | None:
        """Call all conditions with the metrics of an iteration, and return `reason`.

        Args:
            metrics: name -> mean over the iteration.
            **counters: policy_steps, env_steps and updates, the numbers of steps taken so far.

        Returns:
            Description of the first condition that holds; None if none does.

        Raises:
            UserError: A condition reads a metric that was not reported in `SURE` gradient steps. Those before the first
                call, of a resumed training, do not count.
        """
        reason = self.update({**metrics, **counters})
        self._missing -= metrics.keys()
        self._first = counters["updates"] if self._first is None else self._first
        if counters["updates"] - self._first >= SURE:
            refuse_unknown_metrics([("stop", metric) for metric in sorted(self._missing)], metrics, "this training")
        return reason

    def add_evaluation(
        self, policy_steps: int, score: float, info: Mapping[str, float] = MappingProxyType({})
    ) -> str | None:
        """Call all conditions with the results of an evaluation, and return `reason`.

        Args:
            policy_steps: policy steps at the evaluation.
            score: its mean return.
            info: name -> mean of the numbers that `env.info_keys` selects.

        Returns:
            Description of the first condition that holds; None if none does.
        """
        self.evaluated = policy_steps
        return self.update(_evaluation_metrics(score, info))

    def state_dict(self) -> State:
        """Return the states of the conditions, in JSON values."""
        states = [condition.state_dict() for condition in self.conditions]
        return {"names": [*self.names], "states": states, "evaluated": self.evaluated}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        scores: Mapping[int, float],
        infos: Mapping[int, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        """Restore the state that `state_dict` returned, then read the evaluations that it does not contain.

        A condition that was added since then reads all evaluations.

        Args:
            state: the state; {} if there is none.
            scores: policy steps -> mean return of the evaluations up to now.
            infos: policy steps -> name -> mean of the numbers that `env.info_keys` selects.
        """
        stored = dict(zip(state.get("names", ()), state.get("states", ()), strict=True))
        for name, condition in zip(self.names, self.conditions, strict=True):
            if name in stored:
                condition.load_state_dict(stored[name])
            since = state["evaluated"] if name in stored else -1
            for policy_steps in sorted(scores):
                if policy_steps > since:
                    condition(_evaluation_metrics(scores[policy_steps], infos.get(policy_steps, {})))
        self.evaluated = max(scores, default=-1)


def _evaluation_metrics(score: float, info: Mapping[str, float]) -> dict[str, float]:
    return {EVALUATION_RETURN: score} | {evaluation_metric(name): value for name, value in info.items()}


def make_condition(stated: Mapping[str, Any]) -> OwnCondition:
    """Create a condition from its form in a config, as `rlcore.config.stop.read_conditions` returns it."""
    if TARGET in stated:
        with calling(f"stop condition {stated[TARGET]}"):
            return UserCondition(create(stated, KEY), str(stated[TARGET]))
    name, keys = next(iter(stated.items()))
    return All([make_condition(part) for part in keys]) if name == ALL else CONDITIONS[name](**keys)

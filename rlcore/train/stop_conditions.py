"""Stop conditions of a training: they are called with its metrics, checked, saved, and restored.

stop = StopConditions([UpperBound("Rewards/rew_avg", 475)])
stop.add_iteration(metrics, policy_steps=4096, env_steps=4080, updates=32)
stop.add_evaluation(policy_steps=4096, score=470.0)
print(stop.reason)  # None, or the condition that holds
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rlcore.config.callbacks import may_log
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
from rlcore.config.values import nearest
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

log = logging.getLogger(__name__)
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
        callbacks: True if the training has callbacks, which may log further metrics at any time.
    """

    def __init__(
        self,
        conditions: Iterable[Condition] = (),
        names: Sequence[str] | None = None,
        info_keys: Sequence[str] = (),
        callbacks: bool = False,
    ) -> None:
        self.conditions = [with_state(condition) for condition in conditions]
        self.names = [type(condition).__name__ for condition in self.conditions] if names is None else names
        self.evaluated = -1  # policy steps of the last evaluation that the conditions have read; -1 before the first
        self._reads = frozenset[str]().union(*(condition.reads for condition in self.conditions))
        missing = {*self._reads} - {*COMMON, UNKNOWN, *metric_names(info_keys)}
        self._awaited = {metric for metric in missing if may_log(metric)} if callbacks else set[str]()
        self._logged = set[str]()  # names in `_awaited` that a callback has logged
        self._warned = False
        self._missing = missing - self._awaited
        self._known: set[str] = set()  # names of all metrics so far, for warnings
        self._sure = False  # True after `SURE` gradient steps
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
        return cls(conditions, names, info_keys, callbacks=requests is not None)

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
        self._known |= metrics.keys()
        self._missing -= metrics.keys()
        self._logged |= self._awaited & metrics.keys()
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
        self._first = counters["updates"] if self._first is None else self._first
        self._sure = counters["updates"] - self._first >= SURE
        if self._sure:
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

    def warn_of_missing(self, ended: bool = False) -> None:
        """Log a warning, once, about metrics of conditions that neither the training nor a callback has logged.

        Call this after the callbacks of an evaluation, and with `ended` at the end of training. Without `ended`, there
        is no warning in the first `SURE` gradient steps.
        """
        names = sorted(self._awaited - self._logged)
        if names and not self._warned and (self._sure or ended):
            log.warning(
                "stop: neither the training nor a callback has logged %s yet, so its condition cannot hold%s",
                ", ".join(names),
                nearest(names[0], self._known),
            )
            self._warned = True

    def state_dict(self) -> State:
        """Return the states of the conditions, in JSON values."""
        states = [condition.state_dict() for condition in self.conditions]
        logged = {"logged": sorted(self._logged)} if self._awaited else {}
        return {"names": [*self.names], "states": states, "evaluated": self.evaluated, **logged}

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
        self._logged |= {*state.get("logged", ())}


def _evaluation_metrics(score: float, info: Mapping[str, float]) -> dict[str, float]:
    return {EVALUATION_RETURN: score} | {evaluation_metric(name): value for name, value in info.items()}


def make_condition(stated: Mapping[str, Any]) -> OwnCondition:
    """Create a condition from its form in a config, as `rlcore.config.stop.read_conditions` returns it."""
    if TARGET in stated:
        with calling(f"stop condition {stated[TARGET]}:"):
            return UserCondition(create(stated, KEY), str(stated[TARGET]))
    name, keys = next(iter(stated.items()))
    return All([make_condition(part) for part in keys]) if name == ALL else CONDITIONS[name](**keys)

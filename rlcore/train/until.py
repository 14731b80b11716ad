"""Training in the caller's process until its budget is used or a stop condition holds (`Trainer.run`)."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlcore.errors import CallbackError, UserError
from rlcore.store.series import RETURN, info_means
from rlcore.train.boundary import FINISHED, status_of
from rlcore.train.callback_calls import Callbacks
from rlcore.train.curve_svg import curve_svg
from rlcore.train.stop_conditions import StopConditions
from rlcore.types import Episode


@dataclass(frozen=True)
class Iteration:
    """Results of one iteration.

    Attributes:
        policy_steps: number of policy steps so far, of all environments and ranks.
        env_steps: number of actions so far.
        updates: number of gradient steps so far.
        metrics: means over the updates of the iteration and over the episodes that ended in it, as numbers.
        episodes: episodes that ended in the iteration.
    """

    policy_steps: int
    env_steps: int
    updates: int
    metrics: dict[str, float]
    episodes: Sequence[Episode]


@dataclass(frozen=True)
class Result:
    """Result of `Trainer.run`. A notebook shows it as a learning curve.

    Attributes:
        reason: "finished" if the budget was used, otherwise a description of the stop condition that holds.
        metrics: policy steps -> metrics of the iteration that ended there.
        evaluations: policy steps -> result of an evaluation (`Trainer.evaluate`).
    """

    reason: str
    metrics: dict[int, dict[str, float]]
    evaluations: dict[int, dict[str, Any]]

    def _repr_html_(self) -> str:
        """Return what a notebook shows for the result: how training ended, and the learning curve."""
        steps = max(self.metrics, default=0)
        facts = [f"{self.reason} at {steps:,} policy steps"]
        if self.evaluations:
            facts.append(f"last evaluation {self.evaluations[max(self.evaluations)]['mean']:,.4g}")
        training = [(at, values[RETURN]) for at, values in self.metrics.items() if RETURN in values]
        return f"<div>{html.escape(' · '.join(facts))}</div>{curve_svg(training, self.evaluations)}"


def train_until(
    iterations: Iterable[Iteration],
    conditions: StopConditions,
    evaluate: Callable[[], dict[str, Any]],
    evaluate_every: int | None,
    on_iteration: Callable[[Iteration], object] | None,
    callbacks: Callbacks | None = None,
) -> Result:
    """Train to the end of the budget or until a stop condition holds.

    Args:
        iterations: iterator that trains one iteration at a time.
        conditions: the stop conditions.
        evaluate: function that evaluates the agent.
        evaluate_every: number of iterations between evaluations; None: no evaluations.
        on_iteration: called after each iteration; None: no function.
        callbacks: the callbacks; None: no callbacks.

    Returns:
        The result.

    Raises:
        UserError: If `evaluate_every` is less than 1, or a condition reads a metric that is not reported.
        CallbackError: If a callback raises an exception.
    """
    if evaluate_every is not None and evaluate_every < 1:
        raise UserError(f"run(evaluate_every={evaluate_every}): must be 1 or more, or None")
    result = Result(FINISHED, {}, {})
    if not callbacks:
        return _train(iterations, conditions, evaluate, evaluate_every, on_iteration, result)
    try:
        result = _train(iterations, conditions, evaluate, evaluate_every, on_iteration, result, callbacks)
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        with suppress(CallbackError):  # the first error is reported
            callbacks.call("on_end", status=status, reason=str(error) or type(error).__name__)
        raise
    logged = callbacks.call("on_end", status=status_of(result.reason), reason=result.reason)
    conditions.warn_of_missing(ended=True)
    if result.metrics:
        result.metrics[max(result.metrics)] |= logged
    return result


def _train(
    iterations: Iterable[Iteration],
    conditions: StopConditions,
    evaluate: Callable[[], dict[str, Any]],
    evaluate_every: int | None,
    on_iteration: Callable[[Iteration], object] | None,
    result: Result,
    callbacks: Callbacks | None = None,
) -> Result:
    requests = callbacks.requests if callbacks is not None else None
    for number, iteration in enumerate(iterations, 1):
        steps, metrics = iteration.policy_steps, iteration.metrics
        counters = {"policy_steps": steps, "env_steps": iteration.env_steps, "updates": iteration.updates}
        result.metrics[steps] = metrics
        if callbacks is not None:
            metrics |= callbacks.on_iteration(metrics)
        if on_iteration is not None:
            on_iteration(iteration)
        reason = conditions.add_iteration(metrics, **counters)
        if evaluate_every is not None and number % evaluate_every == 0:
            result.evaluations[steps] = found = evaluate()
            reason = conditions.add_evaluation(steps, found["mean"], info_means(found))
            if callbacks and (logged := callbacks.on_evaluation(found)):
                metrics |= logged
                reason = conditions.update(logged)
            conditions.warn_of_missing()
        if reason is None and requests is not None and requests.met:
            reason = str(requests)
        if reason is not None:
            return Result(reason, result.metrics, result.evaluations)
    return result

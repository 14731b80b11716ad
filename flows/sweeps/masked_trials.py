"""Copies of Optuna's trials that contain only the results that the sampler or the pruner may use."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

RUNG = "completed_rung_"  # prefix of the attributes that Optuna's pruners set on a trial
RUNGS = "rungs"  # attribute that stores them together with the policy steps at which each was set
DEFAULT = "default"  # attribute of the trial that has the default configuration


def masked_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return the copy of a trial that is shown to the sampler and the pruner when they handle other trials.

    A failed trial is shown as pruned before its first evaluation. Optuna ranks such a trial worst. It ignores failed
    trials, so the sampler `tpe` would choose similar values again and again.
    """
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return _copy(trial, 0, TrialState.PRUNED)
    return _copy(trial, None, trial.state) if RUNGS in trial.system_attrs else trial


def as_asked(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a trial in the state after it was sampled: it has values for its keys, but no results."""
    return _copy(trial, 0)


def ask_again(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a failed trial without its results, so that it can be trained again.

    The attribute that identifies the trial with the default configuration is kept.
    """
    masked = as_asked(trial)
    masked.user_attrs = {key: note for key, note in trial.user_attrs.items() if key == DEFAULT}
    return masked


def with_value(trial: FrozenTrial, step: int, value: float | None) -> FrozenTrial:
    """Return a copy of a trial with `value` as its only intermediate value, at `step`; with none if it is None."""
    masked = copy.copy(trial)
    masked.intermediate_values = {} if value is None else {step: value}
    return masked


def until(trial: FrozenTrial, step: int) -> FrozenTrial:
    """Return a copy of a running trial without the results after policy step `step`."""
    return _copy(trial, step)


def _copy(trial: FrozenTrial, step: int | None, state: TrialState | None = None) -> FrozenTrial:
    """Copy a trial with the results that were known when the pruner decided at policy step `step`.

    If `step` is None, all results are copied.
    """
    from optuna.trial import TrialState, create_trial

    rungs = trial.system_attrs.get(RUNGS, {})
    state = state or TrialState.RUNNING
    return create_trial(
        state=state,
        value=trial.value if state == TrialState.COMPLETE else None,
        params=trial.params,
        distributions=trial.distributions,
        system_attrs={key: value for key, value in trial.system_attrs.items() if key != RUNGS}
        | {key: value for key, (at, value) in rungs.items() if step is None or at < step},
        intermediate_values={at: v for at, v in trial.intermediate_values.items() if step is None or at <= step},
    )

"""Copies of Optuna's trials that contain only the results that the sampler or the pruner may use.

In batch mode, for example, the results of the current batch are removed, so that a sweep is reproducible.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

RUNG = "completed_rung_"  # prefix of the attributes that Optuna's pruners set on a trial
RUNGS = "rungs"  # attribute that stores them together with the policy steps at which each was set
DEFAULT = "default"  # attribute of the trial that has the default configuration


def masked_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return the copy of an earlier trial that the sampler and the pruner receive when they handle another trial.

    A failed trial is returned as a trial that was pruned before its first evaluation. Optuna ranks such a trial worst,
    so the sampler `tpe` avoids similar values. It would ignore a failed trial and choose similar values again.
    """
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return _copy(trial, 0, TrialState.PRUNED)
    return _copy(trial, None, trial.state) if RUNGS in trial.system_attrs else trial


def as_asked(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a trial without results, as it was when its values had just been sampled."""
    return _copy(trial, 0)


def ask_again(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a failed trial without its results, so that it can be trained again.

    The attribute that identifies the trial with the default configuration is kept.
    """
    masked = as_asked(trial)
    masked.user_attrs = {key: note for key, note in trial.user_attrs.items() if key == DEFAULT}
    return masked


def with_value(trial: FrozenTrial, step: int, value: float | None) -> FrozenTrial:
    """Return a copy of a trial with one intermediate value, `value` at `step`; if `value` is None, without any."""
    masked = copy.copy(trial)
    masked.intermediate_values = {} if value is None else {step: value}
    return masked


def until(trial: FrozenTrial, step: int) -> FrozenTrial:
    """Return a copy of a trial in state RUNNING, without the results that are later than policy step `step`."""
    return _copy(trial, step)


def _copy(trial: FrozenTrial, step: int | None, state: TrialState | None = None) -> FrozenTrial:
    """Copy a trial with only the results that were known when the pruner decided at a policy step.

    Args:
        trial: the trial.
        step: the policy step; None copies all results.
        state: state of the copy; None = RUNNING.

    Returns:
        The copy.
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

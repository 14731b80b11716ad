"""Copies of a trial with only the information that sampler and pruner should have about it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

RUNG = "completed_rung_"  # prefix of the attributes that Optuna's pruners set on a trial
RUNGS = "rungs"  # our attribute with these attributes and the policy step of each
DEFAULT = "default"  # attribute of the trial that has the default configuration


def masked_trial(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as other trials see it; a failed trial becomes one that was pruned before its first evaluation.

    Optuna ignores failed trials, so `tpe` would sample similar values repeatedly. A trial that was pruned without an
    evaluation is ranked worst.
    """
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return _copy(trial, 0, TrialState.PRUNED)
    return _copy(trial, None, trial.state) if RUNGS in trial.system_attrs else trial


def as_asked(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as it was when it was sampled, without results."""
    return _copy(trial, 0)


def ask_again(trial: FrozenTrial) -> FrozenTrial:
    """Return a failed trial as it was when it was sampled; the mark of the default configuration is kept."""
    masked = as_asked(trial)
    masked.user_attrs = {key: note for key, note in trial.user_attrs.items() if key == DEFAULT}
    return masked


def with_value(trial: FrozenTrial, step: int, value: float | None) -> FrozenTrial:
    """Return a copy of a trial with one intermediate value, or with none."""
    masked = copy.copy(trial)
    masked.intermediate_values = {} if value is None else {step: value}
    return masked


def until(trial: FrozenTrial, step: int) -> FrozenTrial:
    """Return a running trial as it was at `step`."""
    return _copy(trial, step)


def _copy(trial: FrozenTrial, step: int | None, state: TrialState | None = None) -> FrozenTrial:
    """Copy a trial with what was known when the pruner decided at `step`; with everything if `step` is None."""
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

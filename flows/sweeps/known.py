"""A trial as sampler and pruner know it when another one is asked or judged."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

RUNG = "completed_rung_"  # Optuna's names of what its pruners note on a trial; ours of the note that has when
RUNGS = "rungs"
DEFAULT = "default"  # the note on the trial that is the default configuration


def as_known(trial: FrozenTrial) -> FrozenTrial:
    """A trial as others see it: one that failed as one that was ended before its first evaluation, the worst there is.

    Optuna leaves failed trials out, and `tpe` would try what fails again and again.
    """
    from optuna.trial import TrialState

    if trial.state == TrialState.FAIL:
        return _copy(trial, 0, TrialState.PRUNED)
    return _copy(trial, None, trial.state) if RUNGS in trial.system_attrs else trial


def as_asked(trial: FrozenTrial) -> FrozenTrial:
    """A trial as it was when it was asked."""
    return _copy(trial, 0)


def ask_anew(trial: FrozenTrial) -> FrozenTrial:
    """A trial that failed as one that has only been asked; the default configuration stays noted as such."""
    made = as_asked(trial)
    made.user_attrs = {key: note for key, note in trial.user_attrs.items() if key == DEFAULT}
    return made


def with_value(trial: FrozenTrial, step: int, value: float | None) -> FrozenTrial:
    """A trial with one intermediate value, or none."""
    made = copy.copy(trial)
    made.intermediate_values = {} if value is None else {step: value}
    return made


def until(trial: FrozenTrial, step: int) -> FrozenTrial:
    """A trial that runs, as it was after so many evaluations."""
    return _copy(trial, step)


def _copy(trial: FrozenTrial, step: int | None, state: TrialState | None = None) -> FrozenTrial:
    """A trial with what it had before the pruner was asked at an evaluation, or with all."""
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

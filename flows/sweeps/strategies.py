"""Samplers and pruners of Optuna, and the copies of trials that they receive.

A copy contains only the results that the sampler or the pruner may use. In batch mode, for example, the results of the
current batch are removed, so that a sweep is reproducible.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.sweeps.plan import SweepConfig, TrialIntervals
from flows.sweeps.space import Dimension

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

RUNG = "completed_rung_"  # prefix of the attributes that Optuna's pruners set on a trial
RUNGS = "rungs"  # attribute that stores them together with the policy steps at which each was set
DEFAULT = "default"  # attribute of the trial that has the default configuration


def sampler_of(config: SweepConfig, space: Sequence[Dimension], seed: int) -> BaseSampler:
    """Return the Optuna sampler that `sweep.sampler` selects, for one trial; `seed` differs between trials."""
    from optuna import samplers

    with warnings.catch_warnings(action="ignore"):  # Optuna's ExperimentalWarning
        if config.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if config.sampler == "grid":
            return samplers.GridSampler({d.key: d.grid or [] for d in space}, seed=config.seed)
        if config.sampler == "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=config.startup)
        conditional = any(dimension.when for dimension in space)
        return samplers.TPESampler(seed=seed, n_startup_trials=config.startup, multivariate=True, group=conditional)


def pruner_of(config: SweepConfig, pace: TrialIntervals) -> BasePruner | None:
    """Return the Optuna pruner that `sweep.pruner` selects; None for "none". The pruner counts policy steps."""
    from optuna import pruners

    if config.pruner == "median":
        warmup = (config.warmup + 1) * pace.every  # earliest policy step of the first evaluation after the warm-up
        return pruners.MedianPruner(n_startup_trials=config.startup, n_warmup_steps=warmup)
    # The first rung is placed so late that every trial has been evaluated, even a trial with the longest iterations.
    if config.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=pace.unit)
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=pace.unit, max_resource=pace.budget * config.seeds)
    return None


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
    """Copy a trial with only the results up to policy step `step` (None: all); the default state is RUNNING."""
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

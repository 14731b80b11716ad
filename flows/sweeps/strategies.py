"""Optuna's samplers, which choose the values of trials, and pruners, which end trials early."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.sweeps.pace import TrialIntervals
from flows.sweeps.plan import SweepConfig
from flows.sweeps.space import Dimension

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


def sampler_of(config: SweepConfig, space: Sequence[Dimension], seed: int) -> BaseSampler:
    """Return the Optuna sampler that `sweep.sampler` selects, seeded for one trial.

    Args:
        config: settings of the sweep.
        space: the varied keys with their values.
        seed: random seed of the sampler, a different one for each trial.

    Returns:
        The sampler.
    """
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

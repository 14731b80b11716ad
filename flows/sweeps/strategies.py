"""Optuna's samplers and pruners: which values a trial gets, and, in policy steps, which one ends early."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.sweeps.pace import Pace
from flows.sweeps.plan import SweepConfig
from flows.sweeps.space import Dimension

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


def sampler_of(config: SweepConfig, space: Sequence[Dimension], seed: int) -> BaseSampler:
    """The sampler of `sweep.sampler` for one trial, whose random stream begins at a seed."""
    from optuna import samplers

    with warnings.catch_warnings(action="ignore"):  # of what Optuna calls experimental
        if config.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if config.sampler == "grid":
            return samplers.GridSampler({d.key: d.grid or [] for d in space}, seed=config.seed)
        if config.sampler == "gp":
            return samplers.GPSampler(seed=seed, n_startup_trials=config.startup)
        conditional = any(dimension.when for dimension in space)
        return samplers.TPESampler(seed=seed, n_startup_trials=config.startup, multivariate=True, group=conditional)


def pruner_of(config: SweepConfig, pace: Pace) -> BasePruner | None:
    """The pruner of `sweep.pruner`; the evaluations of `sweep.warmup` and of a rung are as many `pace.every`."""
    from optuna import pruners

    if config.pruner == "median":
        warmup = (config.warmup + 1) * pace.every  # where the first evaluation after these comes at the earliest
        return pruners.MedianPruner(n_startup_trials=config.startup, n_warmup_steps=warmup)
    # The first rung lies where every trial has been evaluated, whatever the length of its iterations.
    if config.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=pace.unit)
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=pace.unit, max_resource=pace.budget * config.seeds)
    return None

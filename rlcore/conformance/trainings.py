"""Trainings to look at: made, some iterations old, as bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from rlcore.config.groups import RunConfig
from rlcore.envs.card import environment_card
from rlcore.store.checkpoint import nested_state
from rlcore.train.training import Training

FEW = 3  # iterations that learn: a memory that fills at first brings no batch


def fresh(config: RunConfig, **how: Any) -> Training:
    """A training whose environment has been measured at most once."""
    one = repr(dataclasses.replace(config.env, num_envs=1))  # it is the same of how many there are
    if one not in _CARDS:
        _CARDS[one] = environment_card(config.env, config.seed)
    return Training(config, _CARDS[one], **how)


_CARDS: dict[str, dict[str, Any]] = {}


def trained(config: RunConfig) -> Training:
    """One after some iterations."""
    return run(fresh(config))


def run(training: Training) -> Training:
    """The same, some iterations later."""
    learned = 0
    while learned < FEW:
        check_budget(training)
        training.collect()
        learned += bool(training.update())
    return training


def check_budget(training: Training) -> None:
    """Say so where nothing is learned to the end: then a check would pass whatever the algorithm does."""
    assert training.policy_steps < training.budget, "the budget is over before enough was learned; algo.total_steps"


def bits(training: Training) -> tuple[bytes, bytes]:
    """The whole state as a checkpoint writes it: equal exactly when every bit is."""
    return nested_state.encode(training.state_dict())


def parameters(learner: Any) -> dict[str, nn.Parameter]:
    """Every parameter that a learner holds, under the name of the module's attribute."""
    modules = {name: value for name, value in vars(learner).items() if isinstance(value, nn.Module)}
    return {f"{at}.{name}": p for at, module in modules.items() for name, p in module.named_parameters()}

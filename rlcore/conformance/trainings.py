"""Trainings to look at: made, some iterations old, as bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from rlcore.config.groups import RunConfig
from rlcore.envs.card import environment_card
from rlcore.store.checkpoint import nested_state
from rlcore.train.training import Training

FEW = 3  # iterations


def fresh(config: RunConfig, **how: Any) -> Training:
    """A training whose environment has been measured at most once."""
    one = repr(dataclasses.replace(config.env, num_envs=1))  # it is the same of how many there are
    if one not in _CARDS:
        _CARDS[one] = environment_card(config.env, config.seed)
    return Training(config, _CARDS[one], **how)


_CARDS: dict[str, dict[str, Any]] = {}


def trained(config: RunConfig, iterations: int = FEW) -> Training:
    """One after some iterations."""
    return run(fresh(config), iterations)


def run(training: Training, iterations: int) -> Training:
    """The same, some iterations later."""
    for _ in range(iterations):
        training.collect()
        training.update()
    return training


def bits(training: Training) -> tuple[bytes, bytes]:
    """The whole state as a checkpoint writes it: equal exactly when every bit is."""
    return nested_state.encode(training.state_dict())


def parameters(learner: Any) -> dict[str, nn.Parameter]:
    """Every parameter that a learner holds, under the name of the module's attribute."""
    modules = {name: value for name, value in vars(learner).items() if isinstance(value, nn.Module)}
    return {f"{at}.{name}": p for at, module in modules.items() for name, p in module.named_parameters()}

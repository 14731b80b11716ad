"""Small trainings for checks, and functions that find the parameters, buffers and objects in them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from rlcore.config.groups import RunConfig
from rlcore.envs.card import environment_card
from rlcore.errors import RunError
from rlcore.protocols import Learner
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import parameters
from rlcore.train.training import Training

Kind = TypeVar("Kind")
FEW = 3  # iterations with an update; a replay buffer that is not filled yet returns no batch


def fresh(config: RunConfig, **how: Any) -> Training:
    """Create a training.

    Its environment card (measured properties of the environment) is measured once per process and environment.
    """
    one = repr(dataclasses.replace(config.env, num_envs=1))  # the card does not depend on the number of environments
    if one not in _CARDS:
        _CARDS[one] = environment_card(config.env)
    with _BUILDING:  # threads share torch's global generator, which initializes layers
        return Training(config, _CARDS[one], **how)


_CARDS: dict[str, dict[str, Any]] = {}
_BUILDING = threading.Lock()


def train_a_while(config: RunConfig) -> Training:
    """Create a training and run it for a few iterations."""
    return run(fresh(config))


def run(training: Training) -> Training:
    """Run a training for a few iterations and return it."""
    learned = 0
    while learned < FEW:
        check_budget(training)
        training.collect()
        try:
            learned += bool(training.update())
        except RunError as error:  # update() returned something other than metrics
            raise AssertionError(str(error)) from error
    return training


def check_budget(training: Training) -> None:
    """Raise AssertionError if training ended before enough updates, because a check would then test nothing."""
    assert training.policy_steps < training.budget, (
        f"algo.total_steps={training.budget}: training ends before {FEW} updates; use a larger value"
    )


def bits(training: Training) -> tuple[bytes, bytes]:
    """Return the encoded state of a training, as in a checkpoint; equal values mean bit-identical states."""
    return nested_state.encode(training.state_dict())


def module_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return all parameters and buffers of a learner's modules, by name."""
    modules = find_all(learner, nn.Module)
    tensors = {f"{at}.{name}": buffer for at, part in modules.items() for name, buffer in part.named_buffers()}
    return {**parameters(learner), **tensors}


def find_all(learner: Any, kind: type[Kind]) -> dict[str, Kind]:
    """Return all objects of class `kind` in a learner, by their paths.

    Attributes, lists, dicts and nested objects are searched; nested objects only if their class belongs to the
    learner's package or to rlcore.
    """
    ours = {each.__module__.partition(".")[0] for each in (type(learner), Training)}
    found: dict[str, Kind] = {}
    seen: set[int] = set()

    def walk(value: Any, place: str) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, kind) and value is not learner:
            found[place] = value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                walk(part, f"{place}[{key!r}]")
        elif isinstance(value, (list, tuple)):
            for i, part in enumerate(value):
                walk(part, f"{place}[{i}]")
        elif type(value).__module__.partition(".")[0] in ours and hasattr(value, "__dict__"):
            for name, part in vars(value).items():
                walk(part, f"{place}.{name}" if place else name)

    walk(learner, "")
    return found

"""Trainings to look at: made, some iterations old, as bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from rlcore.config.groups import RunConfig
from rlcore.envs.card import environment_card
from rlcore.errors import RunError
from rlcore.store.checkpoint import nested_state
from rlcore.train.training import Training

Kind = TypeVar("Kind")
FEW = 3  # iterations that learn: a memory that fills at first brings no batch


def fresh(config: RunConfig, **how: Any) -> Training:
    """A training whose environment has been measured at most once."""
    one = repr(dataclasses.replace(config.env, num_envs=1))  # it is the same of how many there are
    if one not in _CARDS:
        _CARDS[one] = environment_card(config.env)
    with _BUILDING:  # ranks that are threads share torch's global generator, from which layers are drawn
        return Training(config, _CARDS[one], **how)


_CARDS: dict[str, dict[str, Any]] = {}
_BUILDING = threading.Lock()


def train_a_while(config: RunConfig) -> Training:
    """Begin a training and let it go on for some iterations."""
    return run(fresh(config))


def run(training: Training) -> Training:
    """Let a training go on for some iterations; gives it back."""
    learned = 0
    while learned < FEW:
        check_budget(training)
        training.collect()
        try:
            learned += bool(training.update())
        except RunError as error:  # what an update gave is no metrics
            raise AssertionError(str(error)) from error
    return training


def check_budget(training: Training) -> None:
    """Say so where nothing is learned to the end: then a check would pass whatever the algorithm does."""
    assert training.policy_steps < training.budget, "the budget is over before enough was learned; algo.total_steps"


def bits(training: Training) -> tuple[bytes, bytes]:
    """The whole state as a checkpoint writes it: equal exactly when every bit is."""
    return nested_state.encode(training.state_dict())


def find_all(learner: Any, kind: type[Kind]) -> dict[str, Kind]:
    """All of a kind that a learner holds, by place: its attributes, what is in lists and dicts, and in its own objects.

    Its own are those whose class comes from its package or from this one.
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

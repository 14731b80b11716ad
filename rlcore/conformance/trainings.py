"""Short trainings for conformance checks, and functions that find parameters, buffers and objects in a learner."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn

from rlcore.config.run import RunConfig
from rlcore.envs.card import card_once
from rlcore.errors import RunError
from rlcore.protocols import Learner
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import find_all, parameters
from rlcore.train.trainer import Trainer

FEW = 3  # iterations with an update; a replay buffer that is not filled yet returns no batch


def fresh(config: RunConfig, **how: Any) -> Trainer:
    """Create a new training that has not collected any data.

    Args:
        config: config of the training.
        **how: further arguments of `Trainer`, such as `ranks` or `compiled`.

    Returns:
        The training.
    """
    card = card_once(config.env)
    # Threads share torch's global generator, which initializes layers: two that save and restore it can deadlock.
    with _BUILDING:
        return Trainer(config, card, **how)


_BUILDING = threading.Lock()


def train_a_while(config: RunConfig) -> Trainer:
    """Create a training, run it until three updates (`FEW`) are done, and return it."""
    return run(fresh(config))


def run(training: Trainer) -> Trainer:
    """Run a training until three further updates (`FEW`) are done, and return it."""
    learned = 0
    while learned < FEW:
        check_budget(training)
        training.collect_rollout()
        try:
            learned += bool(training.update())
        except RunError as error:  # update() returned something other than metrics
            raise AssertionError(str(error)) from error
    return training


def check_budget(training: Trainer) -> None:
    """Raise AssertionError if the training has reached `algo.total_steps`; a check needs a few updates before that."""
    assert training.policy_steps < training.budget, (
        f"algo.total_steps={training.budget}: training ends before {FEW} updates; use a larger value"
    )


def bits(training: Trainer) -> tuple[bytes, bytes]:
    """Return the state of a training, encoded as in a checkpoint; equal results mean bit-identical states."""
    return nested_state.encode(training.state_dict())


def module_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return all parameters and buffers of the modules in a learner, by their attribute paths."""
    modules = find_all(learner, nn.Module)
    tensors = {f"{at}.{name}": buffer for at, part in modules.items() for name, buffer in part.named_buffers()}
    return {**parameters(learner), **tensors}

"""The on-policy buffer: a rollout, its steps as samples without order, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.spec import ActionSpec
from rlcore.types import Batch, State, Steps


class Rollout:
    """On-policy storage: hands every rollout out once, whole, in the order of time."""

    def __init__(self) -> None:
        self.pending: tuple[Steps, Steps] | None = None

    def extend(self, steps: Steps, last: Steps) -> None:
        """Take a rollout [T, B, ...] and the arrival [B, ...] after it."""
        self.pending = (steps, last)

    def batches(self, env_steps: int) -> Iterator[Batch]:
        """The pending rollout, collected from `env_steps` on."""
        if self.pending is not None:
            steps, last = self.pending
            self.pending = None
            yield Batch(steps, last, env_steps)

    def state_dict(self) -> State:
        """Nothing: between iterations no rollout waits."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Forget a waiting rollout."""
        self.pending = None


class Samples(NamedTuple):
    """N steps without order: features [N, F], action [N, A], the rest [N]; weight 0 where a row only resets."""

    features: Tensor
    action: Tensor
    old_logprob: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor

    @staticmethod
    def example(count: int, features: int, action: ActionSpec) -> Samples:
        """N made-up samples of the shapes and types that a rollout gives, for tracing a loss."""
        spread = torch.linspace(-1, 1, count)
        kind = torch.float32 if action.continuous else torch.int64
        columns = spread.unsqueeze(-1).repeat(1, features)
        actions = torch.zeros(count, action.size, dtype=kind)
        return Samples(columns, actions, -1 + spread / 9, spread.cos(), spread.flip(0), spread, torch.ones(count))


def minibatches(
    weight: Tensor, size: int, epochs: int, group: int, rng: np.random.Generator
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Minibatches of fixed shape; each epoch visits every counted sample once, in a fresh order.

    Args:
        weight: [N]; samples of weight 0 are left out.
        size: M, of every minibatch; the last of an epoch is filled up by repeats of weight 0.
        epochs: how often every sample is visited.
        group: minibatches that belong to one optimizer step (an epoch's last group may be smaller).
        rng: decides the order.

    Yields:
        Groups of (rows [M] int64, weight [M]), weights of the dtype of `weight`, both on its device.
    """
    counted = weight.cpu().numpy().nonzero()[0]
    if len(counted) == 0:
        return  # one row of environments that all reset: nothing to learn from
    size = min(size, len(weight))
    for _ in range(epochs):
        rows = rng.permutation(counted)
        fill = math.ceil(len(rows) / size) * size - len(rows)
        counts = torch.from_numpy(np.repeat(np.array([1, 0], np.float32), [len(rows), fill])).to(weight)
        order = torch.from_numpy(np.concatenate([rows, np.resize(rows, fill)])).to(weight.device)
        pairs = list(zip(order.split(size), counts.split(size), strict=True))
        for start in range(0, len(pairs), group):
            yield pairs[start : start + group]

"""The on-policy buffer: a rollout, its steps as samples without order, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.types import Batch, Buffer, State, Steps


class Rollout(Buffer):
    """On-policy storage: hands every rollout out once, whole, in the order of time."""

    def __init__(self) -> None:
        self.pending: tuple[Steps, Steps] | None = None

    def extend(self, steps: Steps, last: Steps) -> None:
        """Take a rollout [T, B, ...] and the arrival [B, ...] after it."""
        self.pending = (steps, last)

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """The pending rollout, collected from `policy_steps` on."""
        if self.pending is not None:
            steps, last = self.pending
            self.pending = None
            yield Batch(steps, last, policy_steps)

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

    def columns(self) -> tuple[Tensor, ...]:
        """All but the weight, in order."""
        return self[:-1]

    def rows(self, rows: Tensor, weight: Tensor) -> Samples:
        """The samples of `rows` [M], with weights [M] of their own."""
        return Samples._make((*(column.index_select(0, rows) for column in self.columns()), weight))


def minibatches(weight: Tensor, size: int, epochs: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The minibatches of each epoch, K = ceil(N / size) of fixed shape; an epoch has every counted sample once.

    Their number follows from N alone, whatever was reset: a run makes the gradient steps that its config names, and
    every rank as many. The last is filled up by repeats of weight 0; where so many rows reset that it would hold
    nothing else, all are made smaller instead.

    Args:
        weight: [N]; samples of weight 0 are left out.
        size: M, of every minibatch.
        epochs: E, how often every sample is visited, each time in a fresh order.
        rng: decides the order.

    Returns:
        rows [E, K, M] int64 and weight [K, M] of the dtype of `weight`, the same in every epoch; both on its device.
    """
    counted = weight.cpu().numpy().nonzero()[0]
    size, left = min(size, len(weight)), len(counted)
    count = math.ceil(len(weight) / size)
    each = np.arange(count)
    filled = left - each * size if left > (count - 1) * size else (left + count - 1 - each) // count
    counts = np.arange(size) < filled[:, None]  # [K, M]
    rows = np.zeros((epochs, count, size), np.int64)
    for epoch in rows if left else ():
        order = np.resize(rng.permutation(counted), count * size)
        epoch[counts], epoch[~counts] = order[:left], order[left:]
    return torch.from_numpy(rows).to(weight.device), torch.from_numpy(counts.astype(np.float32)).to(weight)

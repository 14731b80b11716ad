"""The on-policy buffer: a rollout, its steps as samples without order, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlcore.functional.stats import Sum
from rlcore.functional.tree import leaves, rebuild
from rlcore.protocols import Buffer
from rlcore.types import Batch, State, Steps

Record = TypeVar("Record")


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


def cut_sequences(length: int, width: int, longest: int) -> tuple[Tensor, Tensor]:
    """A rollout cut into sequences of rows that follow each other, in equal parts as far as its length allows.

    Args:
        length: T, rows of each environment.
        width: B, environments.
        longest: rows of a sequence, at most.

    Returns:
        rows [S, L] int64 of the S = ceil(T / longest) · B sequences, numbered t·B + b, and own [S, L] bool: False where
        a sequence that is a row shorter than the others has its last one again.
    """
    count = math.ceil(length / longest)
    first = torch.arange(count + 1) * length // count
    t = first[:-1, None] + torch.arange(math.ceil(length / count))  # [count, L]
    own = t < first[1:, None]
    rows = torch.minimum(t, first[1:, None] - 1).unsqueeze(1) * width + torch.arange(width)[:, None]  # [count, B, L]
    return rows.flatten(0, 1), own.unsqueeze(1).expand_as(rows).flatten(0, 1)


def fill_groups(rows: Tensor, weight: Tensor, size: int, total: Sum) -> tuple[Tensor, Tensor]:
    """The minibatches in which a sample counts, on any rank, as many as whole groups of them need.

    Args:
        rows: [E, K, M], of `minibatches`.
        weight: [K, M], likewise.
        size: G, minibatches of a group.
        total: sums over ranks.

    Returns:
        rows [E, K', M] and weight [K', M], where K' is a multiple of G; the last group is filled up by repeats of
        weight 0.
    """
    counted = total(weight.sum(-1)).nonzero().squeeze(-1)
    if len(counted) == len(weight) and len(weight) % size == 0:
        return rows, weight
    place = torch.arange(math.ceil(len(counted) / size) * size, device=rows.device)
    chosen = counted[place % max(1, len(counted))]
    return rows[:, chosen], weight[chosen] * (place < len(counted)).to(weight).unsqueeze(-1)


def split(record: Record, size: int) -> Iterator[list[Record]]:
    """Of a record of K minibatches, tensors [K, ...], the K records [...], in groups of `size`."""
    columns = [column.unbind(0) for column in leaves(record)]
    each = [rebuild(record, iter(parts)) for parts in zip(*columns, strict=True)]
    return (each[first : first + size] for first in range(0, len(each), size))

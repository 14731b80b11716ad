"""On-policy buffer, and functions that divide a rollout into minibatches and sequences."""

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
from rlcore.types import Batch, State, Trajectory

Record = TypeVar("Record")


class Rollout(Buffer):
    """On-policy buffer: it yields each rollout once, with all rows in time order."""

    def __init__(self) -> None:
        self.pending: tuple[Trajectory, Trajectory] | None = None

    def extend(self, steps: Trajectory, last: Trajectory) -> None:
        """Store a rollout [T, B, ...] and the time step [B, ...] after it."""
        self.pending = (steps, last)

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """Yield the stored rollout as one batch, if there is one, and remove it.

        `policy_steps` is the number of policy steps, over all ranks, that were taken before this rollout.
        """
        if self.pending is not None:
            steps, last = self.pending
            self.pending = None
            yield Batch(steps, last, policy_steps)

    def state_dict(self) -> State:
        """Return {}, because the buffer is empty when a checkpoint is written."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Discard the stored rollout."""
        self.pending = None


def minibatches(
    weight: Tensor, size: int | None, epochs: int, rng: np.random.Generator | None
) -> tuple[Tensor, Tensor]:
    """Divide N = T·B samples into K = ceil(N / size) minibatches of equal shape, again in each epoch.

    Samples of weight 0, for example steps that only reset an environment, are not used; all other samples occur once
    per epoch. K depends only on N and not on the number of used samples, so that every run and every rank takes the
    configured number of gradient steps. If there are too few samples, the last minibatch is padded by repeated samples
    with weight 0. If it would consist only of padding, the samples are instead distributed evenly over all minibatches.

    Args:
        weight: [T, B]; weight of each sample.
        size: M, size of a minibatch; None: all samples in one minibatch.
        epochs: E, number of epochs, each in a new random order.
        rng: draws the order. None: the samples are ordered by environment and then by time step, in every epoch.

    Returns:
        Sample indices t·B + b, [E, K, M] int64, and weights [K, M] in the dtype of `weight`. The weights are the same
        in all epochs. Both results are on the device of `weight`.
    """
    counted = weight.flatten().cpu().numpy().nonzero()[0]
    size, left = min(size or weight.numel(), weight.numel()), len(counted)
    count = math.ceil(weight.numel() / size)
    if rng is None:
        counted = counted[np.argsort(counted % weight.shape[1], kind="stable")]
    each = np.arange(count)
    filled = left - each * size if left > (count - 1) * size else (left + count - 1 - each) // count
    counts = np.arange(size) < filled[:, None]  # [K, M]
    rows = np.zeros((epochs, count, size), np.int64)
    for epoch in rows if left else ():
        order = np.resize(counted if rng is None else rng.permutation(counted), count * size)
        epoch[counts], epoch[~counts] = order[:left], order[left:]
    return torch.from_numpy(rows).to(weight.device), torch.from_numpy(counts.astype(np.float32)).to(weight)


def cut_sequences(length: int, width: int, longest: int) -> tuple[Tensor, Tensor]:
    """Cut a rollout into sequences of consecutive rows, with lengths that differ by at most one row.

    Args:
        length: T, number of rows of each environment.
        width: B, number of environments.
        longest: maximum number of rows of a sequence.

    Returns:
        Indices t·B + b of the rows of each sequence, [S, L] int64, and a mask [S, L] bool. There are
        S = ceil(T / longest) · B sequences, and L is the length of the longest one. Shorter ones are padded by
        repeating their last row; the mask is False for the padding.
    """
    count = math.ceil(length / longest)
    first = torch.arange(count + 1) * length // count
    t = first[:-1, None] + torch.arange(math.ceil(length / count))  # [count, L]
    own = t < first[1:, None]
    rows = torch.minimum(t, first[1:, None] - 1).unsqueeze(1) * width + torch.arange(width)[:, None]  # [count, B, L]
    return rows.flatten(0, 1), own.unsqueeze(1).expand_as(rows).flatten(0, 1)


def fill_groups(rows: Tensor, weight: Tensor, size: int, total: Sum) -> tuple[Tensor, Tensor]:
    """Remove empty minibatches, and pad the remaining ones to a multiple of `size` minibatches.

    A minibatch is empty if all its samples have weight 0, on all ranks.

    Args:
        rows: [E, K, M], sample indices from `minibatches`: E epochs of K minibatches of M samples.
        weight: [K, M], weights from `minibatches`.
        size: G; the number of minibatches of the result is a multiple of G.
        total: function that sums a tensor over ranks.

    Returns:
        Sample indices [E, K', M] and weights [K', M], with K' a multiple of G. The padding consists of repeated
        minibatches with weight 0.
    """
    counted = total(weight.sum(-1)).nonzero().squeeze(-1)
    if len(counted) == len(weight) and len(weight) % size == 0:
        return rows, weight
    place = torch.arange(math.ceil(len(counted) / size) * size, device=rows.device)
    chosen = counted[place % max(1, len(counted))]
    return rows[:, chosen], weight[chosen] * (place < len(counted)).to(weight).unsqueeze(-1)


def split(record: Record, size: int) -> Iterator[list[Record]]:
    """Split a nested structure of tensors [K, ...] into K structures with tensors [...], and group them into lists.

    Each list has `size` structures; the last one can have fewer.
    """
    columns = [column.unbind(0) for column in leaves(record)]
    each = [rebuild(record, iter(parts)) for parts in zip(*columns, strict=True)]
    return (each[first : first + size] for first in range(0, len(each), size))

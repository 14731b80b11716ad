"""Minibatches of fixed shape, in random order, over the samples that count."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def minibatches(
    weight: Tensor, size: int, epochs: int, group: int, rng: np.random.Generator
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Each epoch visits every counted sample once, in a fresh order.

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

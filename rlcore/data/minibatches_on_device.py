"""Minibatches of a rollout that is on a GPU: they are drawn there, without reading a tensor's value."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

FEWEST = 4  # size of a minibatch from which no minibatch is empty, see `draws_on_device`


def draws_on_device(weight: Tensor, size: int | None) -> bool:
    """Return True if the minibatches of a rollout are drawn on its device, by `minibatches_on_device`.

    This requires a GPU, and that every minibatch has at least one sample with a weight, because empty minibatches are
    removed, and finding them would wait for the GPU. A step that only resets an environment is followed by another
    step, so at least a third of T >= 2 rows has a weight, which fills minibatches of 4 and more samples.

    Args:
        weight: [T, B]; weights of the samples.
        size: number of samples in a minibatch; None: all samples.

    Returns:
        True or False; the result does not depend on the values of `weight`.
    """
    return weight.device.type != "cpu" and len(weight) > 1 and (size is None or size >= FEWEST)


def minibatches_on_device(
    weight: Tensor, size: int | None, epochs: int, group: int | None, rng: np.random.Generator | None
) -> tuple[Tensor, Tensor]:
    """Divide the samples of a rollout into minibatches, by operations on its device only.

    The results are those of `rlcore.data.rollout.minibatches` and `fill_groups`, except for the random order.

    Args:
        weight: [T, B]; weight of each sample.
        size: M, size of a minibatch; None: all samples in one minibatch.
        epochs: E, number of epochs, each in a new random order.
        group: G; the number of minibatches of an epoch is a multiple of G. None: all minibatches are one group.
        rng: draws the seed of the order; None: the samples are ordered by environment, then by time step.

    Returns:
        Sample indices t·B + b, [E, K, M] int64, and weights [K, M] in the dtype of `weight`.
    """
    total, width, device = weight.numel(), weight.shape[1], weight.device
    size = min(size or total, total)
    count = math.ceil(total / size)
    used = weight.flatten() > 0
    left = used.sum()
    each = torch.arange(count, device=device)
    even = (left + count - 1 - each) // count
    filled = torch.where(left > (count - 1) * size, left - each * size, even)
    counts = (torch.arange(size, device=device) < filled.unsqueeze(-1)).flatten()  # [K·M]
    order = _order(total, width, epochs, device, rng).masked_fill(~used, math.inf).argsort(stable=True)
    padding = (left + (~counts).cumsum(0) - 1) % left.clamp(min=1)  # repeats samples from the first one on
    rows = order[:, torch.where(counts, counts.cumsum(0) - 1, padding)].view(epochs, count, size)
    group = group or count
    place = torch.arange(math.ceil(count / group) * group, device=device)
    chosen, real = place % count, (place < count).unsqueeze(-1)
    return rows[:, chosen], (counts.view(count, size)[chosen] & real).to(weight)


def _order(total: int, width: int, epochs: int, device: torch.device, rng: np.random.Generator | None) -> Tensor:
    """Return sort keys of all samples for each epoch, [E, N] float64."""
    if rng is None:
        index = torch.arange(total, device=device)
        return (index % width * total + index // width).double().expand(epochs, total)
    if device.type == "meta":  # has no generator; tests use it, because reading a tensor there is an error
        return torch.rand(epochs, total, dtype=torch.float64, device=device)
    generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 63)))
    return torch.rand(epochs, total, dtype=torch.float64, device=device, generator=generator)

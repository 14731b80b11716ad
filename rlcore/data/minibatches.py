"""Division of a rollout into minibatches and sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from rlcore.functional.noise import SortKeys, SortKeyStream
from rlcore.functional.tree import leaves, rebuild
from rlcore.types import Ranks

FEWEST = 4  # size of a minibatch from which no minibatch is empty, see `never_empty`
Record = TypeVar("Record")


def minibatches(
    weight: Tensor,
    size: int | None,
    epochs: int,
    group: int | None,
    rng: np.random.Generator | SortKeyStream | None,
    ranks: Ranks,
    rows: int = 1,
) -> tuple[Tensor, Tensor]:
    """Divide the N = T·B samples of a rollout into minibatches of equal shape, again in each epoch.

    Samples of weight 0, for example steps that only reset an environment, are not used; all other samples occur once
    per epoch. There are K = ceil(N / size) minibatches, which depends only on N and not on the number of used samples,
    so that every run and every rank takes the configured number of gradient steps. Minibatches that are empty on all
    ranks are removed.

    On a GPU, the order is drawn there, without reading a tensor's value. This requires a single rank, and that no
    minibatch can be empty, because finding empty minibatches would wait for the GPU.

    Args:
        weight: [T, B]; weight of each sample.
        size: M, size of a minibatch; None: all samples in one minibatch.
        epochs: E, number of epochs, each in a new random order.
        group: G; the number of minibatches of the result is a multiple of G. None: all minibatches of an epoch are one
            group.
        rng: draws the order. None: the samples are ordered by environment and then by time step, in every epoch.
        ranks: processes that train together.
        rows: number of consecutive time steps of which every sample consists, at least.

    Returns:
        Sample indices t·B + b, [E, K', M] int64, and weights [K', M] in the dtype of `weight`. The weights are the same
        in all epochs. Both results are on the device of `weight`.
    """
    total, device = weight.numel(), weight.device
    size = min(size or total, total)
    count = math.ceil(total / size)
    on_device = draws_on_device(weight, size, rows, ranks)
    if on_device:
        order = order_on_device(weight, epochs, rng)
    else:  # only CUDA graphs have another stream than a generator, and they draw on the device
        order = order_on_host(weight, epochs, cast("np.random.Generator | None", rng))
    place, counts = partition(weight.count_nonzero(), count, size)
    found, counted = order[:, place], counts.to(weight)
    kept = torch.arange(count, device=device) if on_device else ranks.sum(counted.sum(-1)).nonzero().squeeze(-1)
    return fill_groups(found, counted, kept, group or count)


def draws_on_device(weight: Tensor, size: int, rows: int, ranks: Ranks) -> bool:
    """Return True if minibatches are drawn without reading the weights; arguments are those of `minibatches`."""
    return weight.device.type != "cpu" and ranks.size == 1 and never_empty(weight, size, rows)


def never_empty(weight: Tensor, size: int, rows: int) -> bool:
    """Return True if every minibatch has at least one sample with a weight; this does not depend on the weights.

    A step that only resets an environment is followed by another step. Every sample of two steps therefore has a
    weight. So does at least a third of T >= 2 samples of one step, which fills minibatches of 4 and more samples.

    Args:
        weight: [T, B]; weight of each sample; only the shape is used.
        size: number of samples in a minibatch; T·B: all samples.
        rows: number of time steps of a sample.

    Returns:
        True or False.
    """
    return rows > 1 or (len(weight) > 1 and (size >= FEWEST or size == weight.numel()))


def partition(left: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Distribute samples over K minibatches of M places.

    The minibatches are filled one after the other, and the last one is padded with samples that are repeated from the
    first one on. If it would consist only of padding, the samples are instead distributed evenly over all minibatches.

    Args:
        left: [] int64; number of samples.
        count: K, number of minibatches.
        size: M, size of a minibatch.

    Returns:
        For each place, the index of its sample in the order of the samples, [K, M] int64; and False for padding, [K, M]
        bool. The indices are 0 if there is no sample.
    """
    each = torch.arange(count, device=left.device)
    even = (left + count - 1 - each) // count
    filled = torch.where(left > (count - 1) * size, left - each * size, even)
    counts = (torch.arange(size, device=left.device) < filled.unsqueeze(-1)).flatten()  # [K·M]
    padding = (left + (~counts).cumsum(0) - 1) % left.clamp(min=1)
    place = torch.where(counts, counts.cumsum(0) - 1, padding)
    return place.view(count, size), counts.view(count, size)


def order_on_host(weight: Tensor, epochs: int, rng: np.random.Generator | None) -> Tensor:
    """Return the order of the samples in each epoch, [E, N] int64: those with a weight, then the others.

    The order is drawn from the stream itself; without a stream, it is by environment and then by time step.
    """
    flat = weight.flatten().cpu().numpy()
    used, unused = flat.nonzero()[0], (flat == 0).nonzero()[0]
    if rng is None:
        used = used[np.argsort(used % weight.shape[1], kind="stable")]
    orders = [np.concatenate([used if rng is None else rng.permutation(used), unused]) for _ in range(epochs)]
    return torch.from_numpy(np.stack(orders)).to(weight.device)


def order_on_device(weight: Tensor, epochs: int, rng: np.random.Generator | SortKeyStream | None) -> Tensor:
    """Return the order of the samples in each epoch, [E, N] int64, by operations on the device of the weights.

    The stream only draws the seed of a generator of the device. Otherwise the result is that of `order_on_host`. In a
    CUDA graph, the stream is a `SortKeyStream`.
    """
    keys = _sort_keys(weight.numel(), weight.shape[1], epochs, weight.device, rng)
    return keys.masked_fill(weight.flatten() == 0, math.inf).argsort(stable=True)


def _sort_keys(
    total: int, width: int, epochs: int, device: torch.device, rng: np.random.Generator | SortKeyStream | None
) -> Tensor:
    """Return sort keys of all samples for each epoch, [E, N] float64."""
    if rng is None:
        index = torch.arange(total, device=device)
        return (index % width * total + index // width).double().expand(epochs, total)
    stream = SortKeys(rng, device) if isinstance(rng, np.random.Generator) else rng
    return stream.sort_keys(epochs, total)


def fill_groups(rows: Tensor, weight: Tensor, kept: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Remove minibatches, and pad the remaining ones to a multiple of `size` minibatches.

    Args:
        rows: [E, K, M]; sample indices of E epochs of K minibatches of M samples.
        weight: [K, M]; weights of the samples.
        kept: [n] int64; indices of the minibatches that are not removed.
        size: G; the number of minibatches of the result is a multiple of G.

    Returns:
        Sample indices [E, K', M] and weights [K', M], with K' a multiple of G. The padding consists of repeated
        minibatches with weight 0.
    """
    if len(kept) == len(weight) and len(weight) % size == 0:
        return rows, weight
    place = torch.arange(math.ceil(len(kept) / size) * size, device=rows.device)
    chosen = kept[place % max(1, len(kept))]
    return rows[:, chosen], weight[chosen] * (place < len(kept)).to(weight).unsqueeze(-1)


def cut_sequences(length: int, width: int, longest: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Cut a rollout into sequences of consecutive rows, with lengths that differ by at most one row.

    Args:
        length: T, number of rows of each environment.
        width: B, number of environments.
        longest: maximum number of rows of a sequence.
        device: device of the results; None: the CPU.

    Returns:
        Indices t·B + b of the rows of each sequence, [S, L] int64, and a mask [S, L] bool. There are
        S = ceil(T / longest) · B sequences, and L is the length of the longest one. Shorter ones are padded by
        repeating their last row; the mask is False for the padding.
    """
    count = math.ceil(length / longest)
    first = torch.arange(count + 1, device=device) * length // count
    t = first[:-1, None] + torch.arange(math.ceil(length / count), device=device)  # [count, L]
    own = t < first[1:, None]
    env = torch.arange(width, device=device)[:, None]
    rows = torch.minimum(t, first[1:, None] - 1).unsqueeze(1) * width + env  # [count, B, L]
    return rows.flatten(0, 1), own.unsqueeze(1).expand_as(rows).flatten(0, 1)


def split(record: Record, size: int) -> Iterator[list[Record]]:
    """Split a nested structure of tensors [K, ...] into K structures with tensors [...], and group them into lists.

    Each list has `size` structures; the last one can have fewer.
    """
    columns = [column.unbind(0) for column in leaves(record)]
    each = [rebuild(record, iter(parts)) for parts in zip(*columns, strict=True)]
    return (each[first : first + size] for first in range(0, len(each), size))

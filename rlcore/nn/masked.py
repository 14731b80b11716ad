"""Mean, maximum, log-softmax and sampling over the entries of a tensor that a mask allows.

In a mask, True (or 1) means that an entry counts. The functions do not read values, so that they can be compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.functional.distributions import MaskedCategoricals, mask_logits


def masked_mean(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension of the entries that count; 0 if none counts.

    `mask` has the shape of x, or a shape that can be expanded to it.
    """
    weight = mask.to(x.dtype).expand_as(x)
    return (x * weight).nan_to_num(0.0, 0.0, 0.0).sum(dim) / weight.sum(dim).clamp(min=1)


def masked_max(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the maximum over a dimension of the entries that count; 0 if none counts.

    `mask` has the shape of x, or a shape that can be expanded to it.
    """
    counts = mask.bool().expand_as(x)
    found = x.masked_fill(~counts, -torch.inf).amax(dim)
    return torch.where(counts.any(dim), found, torch.zeros_like(found))


def masked_log_softmax(logits: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Return log-probabilities in which entries that do not count have probability 0.

    Their log-probability is a finite number below -1e37 in float32, so that the product of probability and
    log-probability is 0. If no entry counts, all of them do. `mask` has the shape of `logits`, or a shape that can be
    expanded to it.
    """
    return mask_logits(logits, _or_all(mask, logits, dim)).log_softmax(dim)


def masked_sample(logits: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Sample an index of the last dimension, only among entries that count, by the Gumbel-max trick.

    Args:
        logits: [..., n]; unnormalized log-probabilities.
        mask: [..., n]; if no entry counts, all of them do.
        noise: [..., n]; standard exponential noise.

    Returns:
        Indices, [...] int64.
    """
    counts = _or_all(mask, logits, -1)
    return MaskedCategoricals(logits, (logits.shape[-1],), counts).sample(noise).squeeze(-1)


def _or_all(mask: Tensor, logits: Tensor, dim: int) -> Tensor:
    """Return a mask in the shape of the logits; it allows all entries of a dimension if it would allow none."""
    counts = mask.bool().expand_as(logits)
    return counts | ~counts.any(dim, keepdim=True)

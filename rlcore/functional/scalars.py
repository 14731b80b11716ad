"""Predictions of scalars: two-hot encoding, symlog, and normal distributions with variance 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.precision import to_float32

LIMIT = 20.0  # position of the outermost bins, in symlog space
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class ScalarHead(Protocol):
    """Protocol of the distribution of a predicted scalar, a reward or value; `TwoHot` and `UnitNormal` implement it."""

    @property
    def outputs(self) -> int:
        """Number K of network outputs for one scalar."""
        ...

    def loss(self, outputs: Tensor, x: Tensor, /) -> Tensor:
        """Compute the loss -log p(x), [...], of targets x [...]; network outputs [..., K] define the distribution p."""
        ...

    def mean(self, outputs: Tensor, /) -> Tensor:
        """Return the predicted scalars [...], computed from the network outputs [..., K]."""
        ...


@dataclass(frozen=True)
class TwoHot:
    """Two-hot encoding of scalars over K bins b₀ < ... < b_K-1 (arXiv:2301.04104v1, eq. 8-9).

        x between b_k and b_k+1:    q_k = (b_k+1 - x) / (b_k+1 - b_k),    q_k+1 = 1 - q_k,    all others 0

    A scalar outside the bins is clipped to the outermost bin.

    Attributes:
        bins: K.
        spacing: "symlog": the bins are spaced equally from -20 to 20, and symlog(x) is encoded (arXiv:2301.04104v1).
            "symexp": the bins are at the symexp of these positions, and x is encoded without symlog
            (arXiv:2301.04104v2, eq. 10-11). The two variants have different losses.
    """

    bins: int = 255
    spacing: str = "symlog"

    @property
    def outputs(self) -> int:
        """Number of network outputs that represent one scalar: K, one logit for each bin."""
        return self.bins

    def grid(self, like: Tensor) -> Tensor:
        """Return the positions of the bins, [K], in ascending order, with the dtype and device of `like`.

        The positions are exactly symmetric about 0: bin K-1-k is at the negative position of bin k.
        """
        upper = torch.linspace(-LIMIT, LIMIT, self.bins, dtype=like.dtype, device=like.device)
        upper = upper[self.bins - self.bins // 2 :]
        upper = symexp(upper) if self.spacing == "symexp" else upper
        return torch.cat([-upper.flip(0), upper.new_zeros(self.bins % 2), upper])

    def loss(self, logits: Tensor, x: Tensor) -> Tensor:
        """Compute the cross-entropy -Σ q log p, [...], of targets x [...] and logits [..., K].

        q is the two-hot encoding of x, and p are the probabilities of the logits.
        """
        assert logits.shape[:-1] == x.shape, (logits.shape, x.shape)
        logits, x = to_float32(logits), to_float32(x)
        x, grid = symlog(x) if self.spacing == "symlog" else x, self.grid(logits)
        below = (torch.bucketize(x.detach(), grid, right=True) - 1).clamp(0, self.bins - 2)  # [...]
        low, high = grid[below], grid[below + 1]
        above = ((x - low) / (high - low)).clamp(0, 1)  # weight of the upper bin
        near = logits.gather(-1, torch.stack([below, below + 1], -1))  # [..., 2]
        return logits.logsumexp(-1) - (1 - above) * near[..., 0] - above * near[..., 1]

    def mean(self, logits: Tensor) -> Tensor:
        """Return the scalars [...] that logits [..., K] predict; they are exactly 0 if all logits are equal.

        With spacing "symexp", a scalar is the mean Σ p b of the bin positions b with probabilities p; with "symlog", it
        is the symexp of this mean. The terms of the bins k and K-1-k, which have opposite signs, are added first. If
        terms were added in the order of the bins, rounding errors of the huge outer bins would not cancel.
        """
        p, half = F.softmax(to_float32(logits), -1), self.bins // 2
        difference = p[..., self.bins - half :] - p[..., :half].flip(-1)
        found = (difference * self.grid(p)[self.bins - half :]).sum(-1)
        return symexp(found) if self.spacing == "symlog" else found


def symlog(x: Tensor) -> Tensor:
    """Compute sign(x) log(1 + |x|) elementwise (Hafner et al. 2023, arXiv:2301.04104v1, eq. 2)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """Compute sign(x) (exp|x| - 1) elementwise, the inverse of `symlog`; infinite in float32 if |x| > 88.7."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


def squared_distance(guess: Tensor, target: Tensor, lead: int) -> Tensor:
    """Sum (guess - target)² over all dimensions except the first `lead` ones.

    Both tensors have the same shape; the result has its first `lead` dimensions, for example [T, B] if `lead` is 2.
    """
    assert guess.shape == target.shape and guess.ndim > lead, (guess.shape, target.shape, lead)
    return F.mse_loss(guess, target, reduction="none").sum(tuple(range(lead, guess.ndim)))


def unit_normal_loss(mean: Tensor, x: Tensor, lead: int) -> Tensor:
    """Compute the negative log-likelihood -Σ log N(x; mean, 1) in nats.

    Both tensors have the same shape. The sum is over all dimensions except the first `lead` ones, so the result is for
    example [T, B] if `lead` is 2.
    """
    return 0.5 * squared_distance(mean, x, lead) + HALF_LOG_TWO_PI * mean[(0,) * lead].numel()


class UnitNormal:
    """Distribution of a scalar that a network predicts: a normal with variance 1 (arXiv:2010.02193, eq. 1).

    The network has one output, the mean.
    """

    outputs = 1  # number of network outputs for one scalar

    def loss(self, mean: Tensor, x: Tensor) -> Tensor:
        """Compute -log N(x; mean, 1), [...], for network outputs `mean` [..., 1] and targets x [...]."""
        return unit_normal_loss(mean, x.unsqueeze(-1), x.ndim)

    def mean(self, mean: Tensor) -> Tensor:
        """Return the predicted scalar [...] of a network output [..., 1]."""
        return mean.squeeze(-1)

"""Squared errors, and the log-likelihood of normal distributions with variance 1."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


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

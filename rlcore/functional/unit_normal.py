"""Squared distances, and the likelihood of normals of variance 1 that goes by them."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def squared_distance(guess: Tensor, target: Tensor, lead: int) -> Tensor:
    """Σ (guess - target)² over all but the `lead` leading dimensions: [*lead, ...] each -> [*lead]."""
    assert guess.shape == target.shape and guess.ndim > lead, (guess.shape, target.shape, lead)
    return F.mse_loss(guess, target, reduction="none").sum(tuple(range(lead, guess.ndim)))


def unit_normal_loss(mean: Tensor, x: Tensor, lead: int) -> Tensor:
    """-Σ log N(x; mean, 1) over all but the `lead` leading dimensions, nats: [*lead, ...] each -> [*lead]."""
    return 0.5 * squared_distance(mean, x, lead) + HALF_LOG_TWO_PI * mean[(0,) * lead].numel()


class UnitNormal:
    """A number as the mean of a normal of variance 1 (arXiv:2010.02193, eq. 1), as `TwoHot` is one by bins."""

    outputs = 1  # numbers that a network gives for one

    def loss(self, mean: Tensor, x: Tensor) -> Tensor:
        """-log N(x; mean, 1). mean [..., 1], x [...] -> [...]."""
        return unit_normal_loss(mean, x.unsqueeze(-1), x.ndim)

    def mean(self, mean: Tensor) -> Tensor:
        """The number [...] that a network's output [..., 1] stands for."""
        return mean.squeeze(-1)

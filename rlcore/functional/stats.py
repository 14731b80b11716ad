"""Weighted means and moments."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Mean [] of x [N] over the rows that count; weight [N]."""
    assert x.shape == weight.shape, (x.shape, weight.shape)
    return (x * weight).sum() / weight.sum()


def standardize(x: Tensor, weight: Tensor, eps: float = 1e-8) -> Tensor:
    """(x - mean) / (std + eps) over the rows that count, with the unbiased std.

    A single row that counts is returned unchanged: it has no std (Stable-Baselines3 skips it likewise).

    Args:
        x: [N].
        weight: [N] of 0 and 1.
        eps: keeps the division finite.

    Returns:
        [N]; rows of weight 0 hold numbers without meaning.
    """
    assert x.shape == weight.shape, (x.shape, weight.shape)
    count = weight.sum()
    mean = (x * weight).sum() / count
    variance = ((x - mean).square() * weight).sum() / (count - 1).clamp(min=1)
    return torch.where(count > 1, (x - mean) / (variance.sqrt() + eps), x)


class RunningMoments:
    """Mean and variance of all rows seen (Chan, Golub and LeVeque 1979), in float64 whatever the networks use.

    Args:
        size: F, numbers in a row.
    """

    def __init__(self, size: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.ones(size, dtype=torch.float64)
        self.count = 0.0

    def update(self, rows: Tensor) -> None:
        """Merge rows [N, F] into the moments."""
        rows = rows.detach().to("cpu", torch.float64)
        count = rows.shape[0]
        if count == 0:
            return
        mean, variance = rows.mean(0), rows.var(0, unbiased=False)
        total = self.count + count
        delta = mean - self.mean
        spread = self.variance * self.count + variance * count + delta.square() * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.variance = spread / total
        self.count = total

    def scale(self, eps: float = 1e-8) -> Tensor:
        """Standard deviation [F], float64, never 0."""
        return (self.variance + eps).sqrt()

    def state_dict(self) -> dict[str, Tensor | float]:
        """Mean, variance and count."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor | float]) -> None:
        """Continue from a `state_dict`."""
        self.mean = torch.as_tensor(state["mean"], dtype=torch.float64)
        self.variance = torch.as_tensor(state["variance"], dtype=torch.float64)
        self.count = float(state["count"])

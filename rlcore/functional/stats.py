"""Weighted means and moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlcore.types import Ranks

Sum = Callable[[Tensor], Tensor]  # over ranks


def reduce_loss(loss: Tensor, weight: Tensor, **means: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A loss of each sample [N] as an optimizer takes it: its weighted sum, the weights' sum, and means for the log.

    Args:
        loss: [N], with gradient.
        weight: [N].
        **means: name -> [N], of which the weighted mean is logged; a name's `__` stands for a slash.

    Returns:
        Sum [], weight [], name -> mean [] without gradient.
    """
    weight = weight.to(loss)
    count = weight.sum()
    with torch.no_grad():
        divisor = count.clamp(min=1)
        logged = {name.replace("__", "/"): x.dot(weight) / divisor for name, x in means.items()}
    return loss.dot(weight), count, logged  # dot, which autocast leaves in float32


def mean_over(found: Sequence[Mapping[str, Tensor]], counts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Means over minibatches of what a loss found in each; one in which no sample counts is left out.

    Args:
        found: of each, name -> mean []; 0 where no sample counts.
        counts: of each, its samples' weight [].

    Returns:
        name -> mean [].
    """
    if len(found) == 1:
        return dict(found[0])
    live = (torch.stack([*counts]) > 0).sum().clamp(min=1)
    return {name: torch.stack([means[name] for means in found]).sum() / live for name in found[0]}


def mean_metrics(logged: Sequence[Mapping[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Means of an update's steps and of all ranks, each step and each rank counted once; {} where no step was taken.

    Args:
        logged: of each step, name -> []; a step may lack names.
        ranks: who took the same steps.

    Returns:
        name -> [].
    """
    names = dict.fromkeys(name for step in logged for name in step)
    held = {name: [step[name] for step in logged if name in step] for name in names}
    means = {name: values[0] if len(values) == 1 else torch.stack(values).mean() for name, values in held.items()}
    if means and ranks.size > 1:
        total = ranks.sum(torch.stack([*means.values()])) / ranks.size
        means = dict(zip(means, total, strict=True))
    return means


def standardize(x: Tensor, weight: Tensor, total: Sum = lambda sums: sums, eps: float = 1e-8) -> Tensor:
    """(x - mean) / (std + eps) over the rows that count, with the unbiased std.

    A single row that counts is returned unchanged: it has no std (Stable-Baselines3 skips it likewise).

    Args:
        x: [..., N].
        weight: [..., N] of 0 and 1.
        total: sums over ranks, where the rows of several belong together.
        eps: keeps the division finite.

    Returns:
        [..., N]; rows of weight 0 hold numbers without meaning.
    """
    assert x.shape == weight.shape, (x.shape, weight.shape)
    count, summed = total(torch.stack([weight.sum(-1, keepdim=True), (x * weight).sum(-1, keepdim=True)]))
    centered = x - summed / count
    variance = total((centered.square() * weight).sum(-1, keepdim=True)) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centered / (variance.sqrt() + eps), x)


class RunningMoments:
    """Mean and variance of all rows seen (Chan, Golub and LeVeque 1979), in float64 whatever the networks use.

    Args:
        size: F, numbers in a row.
    """

    def __init__(self, size: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.ones(size, dtype=torch.float64)
        self.count = 0.0

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Merge rows [N, F], and those of the other ranks that `total` sums over, into the moments."""
        rows = rows.detach().to("cpu", torch.float64)
        sums = total(torch.cat([torch.full((1,), float(len(rows)), dtype=torch.float64), rows.sum(0)]))
        count = sums[0].item()
        if count == 0:
            return
        mean = sums[1:] / count
        variance = total((rows - mean).square().sum(0)) / count
        everything = self.count + count
        delta = mean - self.mean
        spread = self.variance * self.count + variance * count + delta.square() * self.count * count / everything
        self.mean = self.mean + delta * count / everything
        self.variance = spread / everything
        self.count = everything

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

"""Weighted means, standardization and running moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlcore.types import Ranks

Sum = Callable[[Tensor], Tensor]  # sums a tensor over all ranks
# Results of a loss function: loss summed over samples [], sum of the sample weights [], and means to log, name -> [];
# and, for `LossTermsAux`, tensors without gradient that a later loss needs, name -> [...].
LossTerms = tuple[Tensor, Tensor, dict[str, Tensor]]
LossTermsAux = tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]


def reduce_loss(loss: Tensor, weight: Tensor, **means: Tensor) -> LossTerms:
    """Sum the losses of N samples; return the tuple that `Optimizer` expects from a loss function.

    The result has sums and not means, so that the sums of several minibatches and ranks can be added.

    Args:
        loss: [N]; loss of each sample, with gradient.
        weight: [N]; weight of each sample.
        **means: name -> [N]; quantities to log as weighted means. `__` in a name is replaced by a slash.

    Returns:
        Weighted sum of the losses [], sum of the weights [], and the weighted means as name -> [] without gradient.
    """
    weight = weight.to(loss)
    count = weight.sum()
    with torch.no_grad():
        divisor = count.clamp(min=1)
        logged = {name.replace("__", "/"): x.dot(weight) / divisor for name, x in means.items()}
    return loss.dot(weight), count, logged  # autocast keeps `dot` in float32


def mean_over(found: Sequence[Mapping[str, Tensor]], counts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Average logged quantities over minibatches, ignoring minibatches without valid samples.

    Args:
        found: for each minibatch, name -> mean []; 0 if the minibatch has no valid sample.
        counts: for each minibatch, the sum of its weights [].

    Returns:
        name -> mean [].
    """
    if len(found) == 1:
        return dict(found[0])
    live = (torch.stack([*counts]) > 0).sum().clamp(min=1)
    return {name: torch.stack([means[name] for means in found]).sum() / live for name in found[0]}


def mean_metrics(logged: Sequence[Mapping[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Average logged quantities over the gradient steps of an update and over ranks, with equal weights.

    Args:
        logged: for each gradient step, name -> []; some names may be missing in some steps.
        ranks: all ranks, which have taken the same gradient steps.

    Returns:
        name -> []; empty if no gradient step was taken.
    """
    names = dict.fromkeys(name for step in logged for name in step)
    held = {name: [step[name] for step in logged if name in step] for name in names}
    means = {name: values[0] if len(values) == 1 else torch.stack(values).mean() for name, values in held.items()}
    if means and ranks.size > 1:
        total = ranks.sum(torch.stack([*means.values()])) / ranks.size
        means = dict(zip(means, total, strict=True))
    return means


def standardize(x: Tensor, weight: Tensor, total: Sum = lambda sums: sums, eps: float = 1e-8) -> Tensor:
    """Compute (x - mean) / (std + eps) over the valid samples, with the unbiased standard deviation.

    If only one sample is valid, it is returned unchanged, as in Stable-Baselines3, because one sample has no standard
    deviation.

    Args:
        x: [..., N]; samples.
        weight: [..., N]; 1 for valid samples, 0 for invalid ones.
        total: function that sums a tensor over ranks, to standardize the samples of all ranks together.
        eps: added to the standard deviation to avoid a division by zero.

    Returns:
        Standardized samples, [..., N]; the values of invalid samples are meaningless.
    """
    assert x.shape == weight.shape, (x.shape, weight.shape)
    count, summed = total(torch.stack([weight.sum(-1, keepdim=True), (x * weight).sum(-1, keepdim=True)]))
    centered = x - summed / count
    variance = total((centered.square() * weight).sum(-1, keepdim=True)) / (count - 1).clamp(min=1)
    return torch.where(count > 1, centered / (variance.sqrt() + eps), x)


def weighted_std(x: Tensor, weight: Tensor, total: Sum = lambda sums: sums) -> Tensor:
    """Compute the unbiased standard deviation of the valid samples; it is 1 if fewer than two samples are valid.

    Args:
        x: [...]; samples.
        weight: [...]; 1 for valid samples, 0 for invalid ones.
        total: function that sums a tensor over ranks, to include the samples of all ranks.

    Returns:
        Standard deviation, [].
    """
    assert x.shape == weight.shape, (x.shape, weight.shape)
    count, summed = total(torch.stack([weight.sum(), (x * weight).sum()]))
    variance = total(((x - summed / count).square() * weight).sum()) / (count - 1).clamp(min=1)
    return torch.where(count > 1, variance.sqrt(), 1.0)


class RunningMoments:
    """Running mean and variance, in float64, of all samples passed to `update` (Chan, Golub and LeVeque 1979).

    Args:
        size: F, features of a sample.
    """

    def __init__(self, size: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.ones(size, dtype=torch.float64)
        self.count = 0.0

    def update(self, rows: Tensor, total: Sum = lambda sums: sums) -> None:
        """Update mean and variance with samples [N, F].

        `total` is a function that sums a tensor over ranks, to include the samples of all ranks. By default, only the
        samples of this process are used.
        """
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
        """Return the standard deviation, [F] float64, never 0."""
        return (self.variance + eps).sqrt()

    def state_dict(self) -> dict[str, Tensor | float]:
        """Return mean, variance and count."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor | float]) -> None:
        """Restore the mean, variance and count returned by `state_dict`."""
        self.mean = torch.as_tensor(state["mean"], dtype=torch.float64)
        self.variance = torch.as_tensor(state["variance"], dtype=torch.float64)
        self.count = float(state["count"])

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


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of the values [K] whose mask [K] bool is true; it is 0 if there are none."""
    assert values.shape == mask.shape, (values.shape, mask.shape)
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


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

    They are on the device of the samples, and updates read no value from a GPU.

    Args:
        size: F, features of a sample.
    """

    def __init__(self, size: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.ones(size, dtype=torch.float64)
        self.count = torch.zeros((), dtype=torch.float64)

    def update(self, rows: Tensor, total: Sum = lambda sums: sums, valid: Tensor | None = None) -> None:
        """Update mean and variance with samples [N, F].

        `total` is a function that sums a tensor over ranks, to include the samples of all ranks. By default, only the
        samples of this process are used. `valid` [N] bool is False for samples that are ignored; None: all are used.
        """
        rows = rows.detach().double()
        self._move(rows.device)
        sums = total(torch.cat([_sum_rows(torch.ones_like(rows[:, :1]), valid), _sum_rows(rows, valid)]))
        count = sums[0]
        mean = sums[1:] / count
        variance = total(_sum_rows((rows - mean).square(), valid)) / count
        everything = self.count + count
        delta = mean - self.mean
        spread = self.variance * self.count + variance * count + delta.square() * self.count * count / everything
        self.mean = torch.where(count > 0, self.mean + delta * count / everything, self.mean)
        self.variance = torch.where(count > 0, spread / everything, self.variance)
        self.count = everything

    def _move(self, device: torch.device) -> None:
        self.mean, self.variance, self.count = (x.to(device) for x in (self.mean, self.variance, self.count))

    def scale(self, eps: float = 1e-8) -> Tensor:
        """Return the standard deviation, [F] float64, never 0."""
        return (self.variance + eps).sqrt()

    def state_dict(self) -> dict[str, Tensor]:
        """Return mean, variance and count."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Tensor | float]) -> None:
        """Restore the mean, variance and count returned by `state_dict`."""
        names = ("mean", "variance", "count")  # the count was a number in older checkpoints
        self.mean, self.variance, self.count = (torch.as_tensor(state[name], dtype=torch.float64) for name in names)


def _sum_rows(rows: Tensor, valid: Tensor | None) -> Tensor:
    """Sum the valid rows of [N, F]; on a GPU, the others are replaced by 0, because selecting rows would wait."""
    if valid is None:
        return rows.sum(0)
    return rows[valid].sum(0) if rows.is_cpu else rows.masked_fill(~valid.unsqueeze(-1), 0).sum(0)

"""Batch normalization whose batch statistics are computed over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlcore.types import Ranks

EPS, SHARE = 1e-3, 0.01  # as in CrossQ; SHARE: momentum of the running statistics
R_MAX, D_MAX = 3.0, 5.0


class BatchNorm(nn.Module):
    """Batch normalization, with batch renormalization after a warm-up (Ioffe 2017, arXiv:1702.03275, algorithm 1).

        x̂ = (x - μ_B) / σ_B · r + d      r = clip(σ_B / σ, 1/r_max, r_max),  d = clip((μ_B - μ) / σ, ±d_max)

    μ_B and σ_B are mean and std of the batch, which consists of the samples of all ranks. μ and σ are the running
    statistics. The output is γ x̂ + β with the trained parameters `scale` γ and `shift` β. No gradient passes through r
    and d. r_max is 3 and d_max is 5. Until the running statistics have been updated more than `warmup` times, r is 1
    and d is 0, which is batch normalization (Ioffe and Szegedy 2015).

    The running statistics and the number of batches are buffers of the module. An update assigns new tensors to the
    buffers instead of modifying them in place (docs/learner_rules.md).

    Args:
        size: F; number of features.
        warmup: number of batches before batch renormalization starts.
    """

    def __init__(self, size: int, warmup: int) -> None:
        super().__init__()
        self.size, self.warmup, self.eps = size, warmup, EPS
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, ranks: Ranks | None) -> Tensor:
        """Normalize x [B, F].

        If `ranks` is given, use the statistics of the batch over these ranks, and update the running statistics. If it
        is None, use the running statistics.
        """
        if ranks is None:
            normalized = (x - self.mean) * (self.variance + self.eps).rsqrt()
        else:
            normalized = self._of_batch(x.to(self.mean.dtype), ranks)
        return (normalized * self.scale + self.shift).to(x.dtype)

    def _of_batch(self, x: Tensor, ranks: Ranks) -> Tensor:
        count = len(x) * ranks.size
        mean = sum_over(ranks, x.sum(0)) / count
        centered = x - mean
        variance = sum_over(ranks, centered.square().sum(0)) / count
        std = (variance + self.eps).sqrt()
        with torch.no_grad():
            running = (self.variance + self.eps).sqrt()
            renormalise: Any = self.count > self.warmup
            r = (std / running).clamp(1 / R_MAX, R_MAX).where(renormalise, torch.ones_like(std))
            d = ((mean - self.mean) / running).clamp(-D_MAX, D_MAX).where(renormalise, torch.zeros_like(mean))
            self.mean = self.mean + SHARE * (mean - self.mean)
            self.variance = self.variance + SHARE * (variance - self.variance)
            self.count = self.count + 1
        return centered * (r / std) + d  # one multiplication per element instead of a division

    def _apply(self, fn: Any, recurse: bool = True) -> BatchNorm:
        """Convert or move the module, but keep the running statistics in float32 or float64.

        In bfloat16, small updates of the statistics would be rounded away.
        """
        kept = {name: self._buffers[name] for name in ("mean", "variance")}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self._buffers[name]
            assert value is not None and moved is not None
            if moved.dtype not in (torch.float32, torch.float64):
                self._buffers[name] = value.to(moved.device)
        return self

    def extra_repr(self) -> str:
        """Return the settings of the layer as text for `repr`."""
        return f"{self.size}, warmup={self.warmup}, eps={self.eps}"


class _Sum(torch.autograd.Function):
    """Differentiable sum of a tensor over ranks; its backward pass sums the gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradient.contiguous()), None


def sum_over(ranks: Ranks, value: Tensor) -> Tensor:
    """Sum a tensor over all ranks; the backward pass sums the gradient over all ranks.

    The tensor must have the same shape on all ranks.
    """
    return value if ranks.size == 1 else _Sum.apply(value, ranks)

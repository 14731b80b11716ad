"""Symmetric logarithm: numbers of any size brought near to 0."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|), elementwise (Hafner et al. 2023, arXiv:2301.04104v1, eq. 2)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """sign(x) (exp|x| - 1), elementwise: `symlog` undone; infinite in float32 from 88.7 on."""
    return torch.sign(x) * torch.expm1(torch.abs(x))

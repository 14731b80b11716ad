"""Symmetric logarithm, which compresses large magnitudes of either sign, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """Compute sign(x) log(1 + |x|) elementwise (Hafner et al. 2023, arXiv:2301.04104v1, eq. 2)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """Compute sign(x) (exp|x| - 1) elementwise, the inverse of `symlog`; infinite in float32 if |x| > 88.7."""
    return torch.sign(x) * torch.expm1(torch.abs(x))

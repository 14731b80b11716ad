"""Numerical precision: losses and distributions use at least float32, even if the networks use a lower precision."""

from __future__ import annotations

import torch
from torch import Tensor


def to_float32(x: Tensor) -> Tensor:
    """Convert a tensor to float32 if its precision is lower; return float32 and float64 tensors unchanged."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()

"""Numerical precision: losses and distributions use at least float32, even if the networks use a lower precision."""

from __future__ import annotations

import torch
from torch import Tensor


def to_float32(x: Tensor) -> Tensor:
    """Return the tensor unchanged if it is float32 or float64, otherwise converted to float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()

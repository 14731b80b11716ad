"""Precision of mathematics: losses and distributions are computed in float32 at least, whatever the networks use."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """The tensor itself if it is float32 or float64, else as float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()

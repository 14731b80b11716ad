"""Temperature: the weight of the entropy beside rewards."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """α, positive as the exponential of its only parameter.

    Args:
        alpha: its first value.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    @property
    def alpha(self) -> Tensor:
        """α [], without gradient."""
        return self.log_alpha.detach().exp()

    def _apply(self, fn: Any, recurse: bool = True) -> Temperature:
        """Moved to another precision, log α stays float32 or better: bfloat16 would round away its steps."""
        kept = self.log_alpha.data
        super()._apply(fn, recurse)
        if self.log_alpha.dtype not in (torch.float32, torch.float64):
            self.log_alpha.data = kept.to(self.log_alpha.device)
        return self

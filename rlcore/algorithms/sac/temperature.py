"""Temperature of soft actor-critics: the weight of the entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """Temperature α > 0, the exponential of the parameter `log_alpha`.

    Args:
        alpha: initial value.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    @property
    def alpha(self) -> Tensor:
        """Temperature α [], without gradient."""
        return self.log_alpha.detach().exp()

    def _apply(self, fn: Any, recurse: bool = True) -> Temperature:
        """Keep log α at least float32 when the module is converted: bfloat16 would lose small updates."""
        kept = self.log_alpha.data
        super()._apply(fn, recurse)
        if self.log_alpha.dtype not in (torch.float32, torch.float64):
            self.log_alpha.data = kept.to(self.log_alpha.device)
        return self

"""Temperature of soft actor-critic algorithms: the weight of the entropy in the objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class Temperature(nn.Module):
    """Module with the temperature α > 0. The trained parameter is log α.

    Args:
        alpha: initial value of α.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    @property
    def alpha(self) -> Tensor:
        """Current temperature α [], detached from the graph."""
        return self.log_alpha.detach().exp()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the module, but keep log α in float32 or float64.

        In bfloat16, small updates of log α would be rounded away.
        """
        kept = self.log_alpha.data
        super()._apply(fn, recurse)
        if self.log_alpha.dtype not in (torch.float32, torch.float64):
            self.log_alpha.data = kept.to(self.log_alpha.device)
        return self

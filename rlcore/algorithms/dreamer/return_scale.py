"""Scale of returns, computed from moving averages of two percentiles. Advantages are divided by this scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.world_keys import MomentsConfig
from rlcore.functional.precision import to_float32
from rlcore.types import Ranks


class ReturnScale(nn.Module):
    """Scale S of returns R, from moving averages of two percentiles (arXiv:2301.04104v1, eq. 12).

        S = max(1 / config.max, EMA(Per(R, 95)) - EMA(Per(R, 5)))

    The moving averages start at 0 and have no bias correction. They are module buffers. An update replaces the buffers
    instead of modifying them in place (docs/learner_rules.md).

    Args:
        config: decay of the moving averages, `max`, and the two percentiles (95 and 5 in the formula).
    """

    def __init__(self, config: MomentsConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def forward(self, returns: Tensor, ranks: Ranks) -> Tensor:
        """Update the moving averages with the returns [...] of all ranks; return the scale S, a scalar."""
        x, config = to_float32(returns.detach()).flatten(), self.config
        if ranks.size > 1:
            everyone = x.new_zeros(ranks.size, len(x))
            everyone[ranks.rank] = x
            x = ranks.sum(everyone).flatten()
        share = 1 - config.decay
        self.low = self.low + share * (torch.quantile(x, config.percentile.low) - self.low)
        self.high = self.high + share * (torch.quantile(x, config.percentile.high) - self.high)
        return (self.high - self.low).clamp(min=1 / config.max)

    def extra_repr(self) -> str:
        """Return the settings as text for `repr`."""
        return repr(self.config)

"""Two-hot regression: a number as a distribution over bins, of which it lies between two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.precision import widen
from rlcore.functional.symlog import symexp, symlog

LIMIT = 20.0  # the outermost bins, in symlog space


@dataclass(frozen=True)
class TwoHot:
    """Distribution over K bins b₀ < ... < b_K-1, by which a number is learned and read (arXiv:2301.04104v1, eq. 8-9).

        x between b_k and b_k+1:    q_k = (b_k+1 - x) / (b_k+1 - b_k),    q_k+1 = 1 - q_k,    all others 0

    Beyond the outermost bins a number counts as the outermost.

    Attributes:
        bins: K.
        spacing: "symlog": equally spaced from -20 to 20, for symlog of the number (the paper of 2023); "symexp": the
            symexp of these, for the number itself (arXiv:2301.04104v2, eq. 10-11). They are not the same loss.
    """

    bins: int = 255
    spacing: str = "symlog"

    @property
    def outputs(self) -> int:
        """Numbers that a network gives for one: K."""
        return self.bins

    def grid(self, like: Tensor) -> Tensor:
        """b, [K], of type and device of another tensor; exactly antisymmetric."""
        upper = torch.linspace(-LIMIT, LIMIT, self.bins, dtype=like.dtype, device=like.device)
        upper = upper[self.bins - self.bins // 2 :]
        upper = symexp(upper) if self.spacing == "symexp" else upper
        return torch.cat([-upper.flip(0), upper.new_zeros(self.bins % 2), upper])

    def loss(self, logits: Tensor, x: Tensor) -> Tensor:
        """Cross-entropy -Σ q log p of numbers under logits. logits [..., K], x [...] -> [...]."""
        assert logits.shape[:-1] == x.shape, (logits.shape, x.shape)
        logits, x = widen(logits), widen(x)
        x, grid = symlog(x) if self.spacing == "symlog" else x, self.grid(logits)
        below = (torch.bucketize(x.detach(), grid, right=True) - 1).clamp(0, self.bins - 2)  # [...]
        low, high = grid[below], grid[below + 1]
        above = ((x - low) / (high - low)).clamp(0, 1)  # weight of the upper bin
        near = logits.gather(-1, torch.stack([below, below + 1], -1))  # [..., 2]
        return logits.logsumexp(-1) - (1 - above) * near[..., 0] - above * near[..., 1]

    def mean(self, logits: Tensor) -> Tensor:
        """The number that logits [..., K] stand for: Σ p b, [...]; exactly 0 of equal logits.

        Summed in pairs from both ends: in order, huge bins leave a rest where they should cancel.
        """
        p, half = F.softmax(widen(logits), -1), self.bins // 2
        difference = p[..., self.bins - half :] - p[..., :half].flip(-1)
        found = (difference * self.grid(p)[self.bins - half :]).sum(-1)
        return symexp(found) if self.spacing == "symlog" else found

"""Dropout whose masks come from the noise that it is handed."""

from __future__ import annotations

from torch import Tensor, nn

from rlcore.functional.noise import Noise


class Dropout(nn.Module):
    """Zeroes each number with a probability, and scales the others so that the mean stays (Srivastava et al. 2014).

    torch's own layer draws from a global generator, which no run here reads; this one draws from a stream that is part
    of the learner's state (purpose `loss`, say), so that a run goes on to the same bits.

    Args:
        p: share of the numbers that are zeroed, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        assert 0 <= p < 1, p
        self.p = p

    def forward(self, x: Tensor, rng: Noise | None) -> Tensor:
        """[...] -> [...] of its dtype; as it is where `rng` is None, as for greedy actions, or p is 0."""
        if rng is None or not self.p:
            return x
        kept = rng.bernoulli(1 - self.p, *x.shape)
        return x * kept.to(x.dtype) / (1 - self.p)

    def extra_repr(self) -> str:
        """Share that is zeroed, which decides compiled code."""
        return f"p={self.p}"

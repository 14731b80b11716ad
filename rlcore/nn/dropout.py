"""Dropout whose random numbers come from a random stream of the run instead of PyTorch's global generator."""

from __future__ import annotations

from torch import Tensor, nn

from rlcore.functional.noise import Noise


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014): sets random elements to zero and scales the others so that the mean is kept.

    `torch.nn.Dropout` draws from PyTorch's global generator. This layer draws from a random stream whose state is saved
    in checkpoints, so a resumed run is bitwise reproducible.

    Args:
        p: probability of zeroing an element, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        assert 0 <= p < 1, p
        self.p = p

    def forward(self, x: Tensor, rng: Noise | None) -> Tensor:
        """Apply dropout to x [...]; return x unchanged if the random stream `rng` is None or if `p` is 0."""
        if rng is None or not self.p:
            return x
        kept = rng.bernoulli(1 - self.p, *x.shape)
        return x * kept.to(x.dtype) / (1 - self.p)

    def extra_repr(self) -> str:
        """Return the settings of the layer as text for `repr`."""
        return f"p={self.p}"

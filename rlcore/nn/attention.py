"""Attention, positional embeddings and activations by name, for networks of your own (`algo.model`).

`torch.nn.MultiheadAttention` returns NaN if every entry is masked, as at the start of an episode, and torch.nn has no
sinusoidal positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rlcore.config.values import nearest
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2): softmax(Q Kᵀ / √d) V.

    It is self-attention if only `x` is given, and cross-attention if `context` is given. A query for which the mask
    allows no entry has the output of a value of zero; in `torch.nn.MultiheadAttention`, it is NaN.

    Args:
        size: F; features of the queries and of the output.
        heads: number of heads, a divisor of F.
        context_size: features of the context; None = F.

    Raises:
        UserError: F is not divisible by the number of heads.
    """

    def __init__(self, size: int, heads: int, context_size: int | None = None) -> None:
        super().__init__()
        if size % heads:
            raise UserError(f"size={size}: must be divisible by the number of heads ({heads}); change one of them")
        self.heads = heads
        self.query, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.key, self.value = (nn.Linear(context_size or size, size) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend to the entries of a sequence.

        Args:
            x: queries, [N, T, F].
            context: sequence to which the queries attend, [N, S, context features]; None = x itself.
            mask: [N, S] or [N, T, S]; True (or 1) for the entries that count. None = all entries count.

        Returns:
            Features, [N, T, F].
        """
        seen = x if context is None else context
        q, k, v = (
            layer(rows).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [N, heads, T or S, F / heads]
            for layer, rows in ((self.query, x), (self.key, seen), (self.value, seen))
        )
        if mask is None:
            found = scaled_dot_product_attention(q, k, v)
        else:
            counts = (mask if mask.ndim == 3 else mask.unsqueeze(1)).bool().unsqueeze(1)  # [N, 1, T or 1, S]
            some = counts.any(-1, keepdim=True)
            found = scaled_dot_product_attention(q, k, v, attn_mask=counts | ~some) * some.to(q.dtype)
        return self.output(found.transpose(1, 2).flatten(-2))


class PositionalEmbedding(nn.Module):
    """Sinusoidal positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5), added to a sequence.

        p(t, 2i) = sin(t / 10000^(2i/F)),    p(t, 2i+1) = cos(t / 10000^(2i/F))

    Args:
        size: F; number of features.
        length: maximum number of entries of a sequence.
        from_newest: count t from the last entry of the sequence, as in a window over past time steps.
    """

    def __init__(self, size: int, length: int, from_newest: bool = False) -> None:
        super().__init__()
        self.from_newest = from_newest
        self.table: Tensor
        angle = torch.arange(length).unsqueeze(-1) / 10_000 ** (torch.arange(0, size, 2) / size)  # [length, F / 2]
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[:, :size]
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the positions to x, [N, T, F]."""
        rows = self.table[: x.shape[-2]]
        return x + (rows.flip(0) if self.from_newest else rows).to(x.dtype)


class SquaredReLU(nn.Module):
    """Activation max(x, 0)² (So et al. 2021, arXiv:2109.08668)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to each element of x."""
        return x.relu().square()


def activation(name: str) -> nn.Module:
    """Create an activation from its name: a value of `dense_act`, such as "tanh", or "squared_relu".

    Raise UserError if the name is unknown.
    """
    if name == "squared_relu":
        return SquaredReLU()
    if name not in ACTIVATIONS:
        known = (*ACTIVATIONS, "squared_relu")
        raise UserError(f"activation {name!r}: must be one of {', '.join(known)}{nearest(name, known)}")
    return getattr(nn, ACTIVATIONS[name])()

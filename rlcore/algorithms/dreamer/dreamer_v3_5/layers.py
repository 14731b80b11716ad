"""Layers of Dreamer V3.5: RMSNorm, linear layers with block-diagonal weights, and their initialization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import CUT_AT_TWO
from rlcore.nn.network_keys import ACTIVATIONS

NormFactory = Callable[..., nn.Module]  # size of the last dimension, or number of channels -> module


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4), followed by an activation.

        y = g x / √(mean(x²) + ε)

    Args:
        size: size of the last dimension.
        eps: ε.
        act: activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, size: int, eps: float, act: str) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps)
        self.act = getattr(nn, ACTIVATIONS[act])()

    def forward(self, x: Tensor) -> Tensor:
        """Apply RMSNorm and activation to x [..., size]; the dtype is unchanged."""
        return self.act(self.norm(x.to(self.norm.weight.dtype)).to(x.dtype))  # else torch warns of unlike dtypes


class ChannelNorm(RMSNorm):
    """RMSNorm over the channels of each pixel, followed by an activation."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply RMSNorm and activation to x [N, C, height, width]; the shape is unchanged."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class BlockLinear(nn.Module):
    """Linear layer with block-diagonal weights: block k of the outputs depends only on block k of the inputs.

    Args:
        inputs: number of inputs, a multiple of `blocks`.
        outputs: number of outputs, a multiple of `blocks`.
        blocks: G; number of blocks.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.in_features = inputs
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [..., G, outputs / G] of x [..., G, inputs / G], with the dtype of the weights."""
        made = torch.einsum("...gi,gio->...go", x.to(self.weight.dtype), self.weight)
        return made + self.bias.unflatten(0, made.shape[-2:])

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{tuple(self.weight.shape)}"


def initialise(
    module: nn.Module,
    rng: torch.Generator,
    scales: Mapping[nn.Module, float],
    inputs: Mapping[nn.Module, int] | None = None,
) -> None:
    """Initialize all layers of a module: normal weights, truncated at two standard deviations, and biases of 0.

    The variance of the weights is scale² / fan_in; for a `BlockLinear`, fan_in is the number of all inputs.

    Args:
        module: module to initialize in place.
        rng: CPU generator.
        scales: layer -> scale; 1 for all other layers.
        inputs: layer -> number of inputs, for layers whose outputs are added, so that they act as one layer.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, BlockLinear)):
            fan_in = layer.weight[0].numel() if isinstance(layer, nn.Conv2d) else layer.in_features
            std = 1 / math.sqrt((inputs or {}).get(layer, fan_in)) / CUT_AT_TWO
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=rng)
            with torch.no_grad():
                layer.weight.mul_(scales.get(layer, 1.0))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

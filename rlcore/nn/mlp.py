"""Multilayer perceptrons with their own seeded initialisation."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlcore.nn.dropout import Dropout
from rlcore.nn.network_keys import ACTIVATIONS, MLPConfig


def linear(inputs: int, outputs: int, rng: torch.Generator, gain: float | None = None) -> nn.Linear:
    """A linear layer initialised from `rng` alone.

    Args:
        inputs: features in.
        outputs: features out.
        rng: a CPU generator; the global one is neither read nor moved.
        gain: orthogonal weights of this gain and zero bias (Saxe et al. 2014); None = torch's default,
            uniform in ±1/sqrt(inputs) for weights and bias.

    Returns:
        The layer, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):  # torch's own values, drawn from its global generator, are replaced below
        layer = nn.Linear(inputs, outputs, device="cpu")
    return initialise(layer, inputs, rng, gain)


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def initialise(layer: Layer, inputs: int, rng: torch.Generator, gain: float | None) -> Layer:
    """The layer, each of whose outputs sums over so many inputs, with weights and biases as `linear` tells."""
    assert layer.bias is not None
    if gain is None:
        bound = 1 / math.sqrt(inputs) if inputs else 0.0
        nn.init.uniform_(layer.weight, -bound, bound, generator=rng)
        nn.init.uniform_(layer.bias, -bound, bound, generator=rng)
    else:
        nn.init.orthogonal_(layer.weight, gain, generator=rng)
        nn.init.zeros_(layer.bias)
    return layer


def hidden_layer(
    inputs: int,
    units: int,
    activation: str,
    rng: torch.Generator,
    *,
    dropout: float = 0.0,
    layer_norm: bool = False,
    gain: float | None = None,
) -> list[nn.Module]:
    """Linear, dropout?, LayerNorm?, activation: one of a perceptron's layers.

    Args:
        inputs: features in.
        units: features out.
        activation: a key of `rlcore.nn.network_keys.ACTIVATIONS`.
        rng: as for `linear`.
        dropout: share that is dropped before the LayerNorm (Hiraoka et al. 2022); 0 = no such layer.
        layer_norm: whether there is one.
        gain: as for `linear`.

    Returns:
        What is called, in this order.
    """
    between = [*([Dropout(dropout)] if dropout else []), *([nn.LayerNorm(units)] if layer_norm else [])]
    return [linear(inputs, units, rng, gain), *between, getattr(nn, ACTIVATIONS[activation])()]


class MLP(nn.Module):
    """`mlp_layers` of (linear, LayerNorm?, activation), then a linear output if one is asked for.

    Args:
        inputs: features in.
        config: the hidden layers.
        rng: CPU generator for the initialisation.
        outputs: features of a last linear layer without activation; None = no such layer.
        gain: orthogonal gain of the hidden layers when `config.ortho_init`.
        output_gain: the same for the output layer.
    """

    def __init__(
        self,
        inputs: int,
        config: MLPConfig,
        rng: torch.Generator,
        outputs: int | None = None,
        gain: float = math.sqrt(2),
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size, units, gain_of_hidden = inputs, config.dense_units, gain if config.ortho_init else None
        for _ in range(config.mlp_layers):
            norm = config.layer_norm
            layers += hidden_layer(size, units, config.dense_act, rng, layer_norm=norm, gain=gain_of_hidden)
            size = units
        if outputs is not None:
            layers.append(linear(size, outputs, rng, output_gain if config.ortho_init else None))
            size = outputs
        self.layers = nn.Sequential(*layers)
        self.output_size = size

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., output_size] of the precision of x, whatever that of the weights."""
        if not len(self.layers):
            return x
        first: Any = self.layers[0]
        return self.layers(x.to(first.weight.dtype)).to(x.dtype)

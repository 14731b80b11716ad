"""Linear layers and multilayer perceptrons whose initial weights are drawn from an explicit random generator."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlcore.nn.network_keys import ACTIVATIONS, MLPConfig


def linear(inputs: int, outputs: int, rng: torch.Generator, gain: float | None = None) -> nn.Linear:
    """Create a linear layer whose initial weights depend only on `rng`.

    Args:
        inputs: number of input features.
        outputs: number of output features.
        rng: CPU generator. PyTorch's global generator is not used, and its state does not change.
        gain: if set, initialize with orthogonal weights of this gain (Saxe et al. 2014) and zero biases. None =
            PyTorch's default: weights and biases are uniform in ±1/sqrt(inputs).

    Returns:
        The layer, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws from the global generator; the weights are replaced below
        layer = nn.Linear(inputs, outputs, device="cpu")
    return initialise(layer, inputs, rng, gain)


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def initialise(layer: Layer, inputs: int, rng: torch.Generator, gain: float | None) -> Layer:
    """Initialize weights and biases of a layer in place, and return the layer.

    Args:
        layer: linear layer or convolution with a bias.
        inputs: fan-in of the layer, the number of inputs of each output unit.
        rng: CPU generator.
        gain: if set, initialize with orthogonal weights of this gain and zero biases. None = weights and biases are
            uniform in ±1/sqrt(inputs), as in PyTorch.

    Returns:
        The layer.
    """
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
    layer_norm: bool = False,
    gain: float | None = None,
) -> list[nn.Module]:
    """Create a hidden layer: linear, optional LayerNorm, activation.

    Args:
        inputs: number of input features.
        units: number of output features.
        activation: name of the activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
        rng: CPU generator for the initialization.
        layer_norm: if True, add a LayerNorm before the activation.
        gain: gain of orthogonal initial weights; None = PyTorch's default initialization.

    Returns:
        Modules, in the order of the forward pass.
    """
    norm = [nn.LayerNorm(units)] if layer_norm else []
    return [linear(inputs, units, rng, gain), *norm, getattr(nn, ACTIVATIONS[activation])()]


class MLP(nn.Module):
    """MLP: hidden layers (linear, optional LayerNorm, activation) and an optional linear output layer.

    Args:
        inputs: number of input features.
        config: number, size, activation, LayerNorm and initialization of the hidden layers.
        rng: CPU generator for the initialization.
        outputs: number of features of the output layer, which has no activation; None = no output layer.
        gain: gain of orthogonal weights in hidden layers, if `config.ortho_init` is true.
        output_gain: gain of orthogonal weights in the output layer, if `config.ortho_init` is true.
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
        """Map x [..., inputs] to [..., output_size].

        The result has the dtype of x; the layers are computed in the dtype of their weights.
        """
        if not len(self.layers):
            return x
        first: Any = self.layers[0]
        return self.layers(x.to(first.weight.dtype)).to(x.dtype)

"""Networks of off-policy actors and critics: MLPs in the variants of DroQ, CrossQ and SimBa."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Drawn, Noise
from rlcore.nn.batch_norm import BatchNorm
from rlcore.nn.dropout import Dropout
from rlcore.nn.mlp import hidden_layer, linear
from rlcore.nn.network_keys import ACTIVATIONS, NetworkConfig
from rlcore.types import Ranks


class Network(nn.Module):
    """MLP of an off-policy actor or critic, with an optional linear output layer.

    Config keys select the kind of hidden layers. Layers in parentheses are repeated; "?" marks optional layers.

        config key           layers
        dropout, layer_norm  (linear, dropout?, LayerNorm?, activation)   DroQ: Hiraoka et al. 2022, arXiv:2110.02034
        batch_norm           norm, (linear, activation, norm)             CrossQ: Bhatt et al. 2024, arXiv:1902.05605
        residual             linear, (residual block), LayerNorm          SimBa: Lee et al. 2024, arXiv:2410.09754

    Args:
        inputs: number of input features.
        config: number, size and kind of the hidden layers.
        rng: CPU generator for the initialization.
        outputs: number of features of the output layer, which has no activation; None = no output layer.
    """

    def __init__(self, inputs: int, config: NetworkConfig, rng: torch.Generator, outputs: int | None = None) -> None:
        super().__init__()
        units, layers = config.hidden_size, list[nn.Module]()
        if config.batch_norm:
            layers.append(BatchNorm(inputs, config.renorm_warmup))
        if config.residual:
            blocks = [ResidualBlock(units, config.dense_act, rng) for _ in range(config.mlp_layers)]
            layers += [linear(inputs, units, rng, gain=1.0), *blocks, nn.LayerNorm(units)]
        else:
            sizes = [inputs, *[units] * config.mlp_layers]
            for size in sizes[:-1]:
                layer, *others = hidden_layer(size, units, config.dense_act, rng, layer_norm=config.layer_norm)
                layers += [layer, *([Dropout(config.dropout)] if config.dropout else []), *others]
                layers += [BatchNorm(units, config.renorm_warmup)] if config.batch_norm else []
            units = sizes[-1]
        if outputs is not None:
            layers.append(linear(units, outputs, rng, gain=1.0 if config.residual else None))
        self.layers = nn.ModuleList(layers)
        self.output_size = units if outputs is None else outputs
        self.dropouts = sum(isinstance(layer, Dropout) for layer in layers)

    def forward(self, x: Tensor, noise: Noise | Drawn | None = None, ranks: Ranks | None = None) -> Tensor:
        """Apply the layers to x.

        Args:
            x: [B, inputs].
            noise: random numbers for dropout; None = no dropout.
            ranks: if set, batch normalization uses the statistics of the batch over these ranks, and updates its
                running statistics. None = use the running statistics.

        Returns:
            Features [B, output_size] with the dtype of x. The layers are computed in the dtype of their weights.
        """
        if not len(self.layers):
            return x
        y = x.to(next(self.parameters()).dtype)
        for layer in self.layers:
            if isinstance(layer, Dropout):
                y = layer(y, noise)
            else:
                y = layer(y, ranks) if isinstance(layer, BatchNorm) else layer(y)
        return y.to(x.dtype)


class ResidualBlock(nn.Module):
    """Residual block x + linear(activation(linear(LayerNorm(x)))), with the initialization of He et al. 2015.

    Args:
        units: number of input features and of output features; the first linear layer has 4 · `units` outputs.
        activation: name of the activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
        rng: CPU generator for the initialization.
    """

    def __init__(self, units: int, activation: str, rng: torch.Generator) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(units), getattr(nn, ACTIVATIONS[activation])()
        self.wide, self.narrow = linear(units, 4 * units, rng), linear(4 * units, units, rng)
        for layer in (self.wide, self.narrow):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features), generator=rng)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, units] to [B, units]."""
        return x + self.narrow(self.act(self.wide(self.norm(x))))

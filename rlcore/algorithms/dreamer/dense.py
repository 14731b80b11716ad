"""Layers of world models: MLPs, recurrent cells and convolutions, initialized as in the authors' code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.world_keys import InitConfig, MLPSpec
from rlcore.functional.precision import to_float32
from rlcore.nn.network_keys import ACTIVATIONS

CUT_AT_TWO = 0.87962566103423978  # std of a standard normal truncated at ±2
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
Convolution = TypeVar("Convolution", nn.Conv2d, nn.ConvTranspose2d)


def initialise_glorot(
    layer: Layer, rng: torch.Generator, scale: float | None = None, inputs: int | None = None
) -> Layer:
    """Initialize a linear or convolutional layer in place (Glorot and Bengio 2010); biases are zero.

    The variance of the weights is inversely proportional to the mean fan, (fan_in + fan_out) / 2. The two
    distributions, one for output layers and one for hidden layers, are those in the code of arXiv:2301.04104v1.

    Args:
        layer: layer to initialize.
        rng: CPU generator.
        scale: a number (for output layers): uniform distribution with variance scale / mean fan; 0 = zeros.
            None (for hidden layers): normal distribution with variance 1 / mean fan, truncated at two standard
            deviations.
        inputs: number of inputs from which fan_in is computed (fan_in = inputs · kernel area); None = the inputs of
            this layer. If the outputs of two layers are added, both together act as one layer with more inputs. Then
            `inputs` is the number of inputs of both.

    Returns:
        The layer.
    """
    if isinstance(layer, nn.Linear):
        space, fan_in, fan_out = 1, layer.in_features, layer.out_features
    else:
        space, fan_in, fan_out = math.prod(layer.kernel_size), layer.in_channels, layer.out_channels
    mean = space * ((inputs or fan_in) + fan_out) / 2
    with torch.no_grad():
        if scale is None:
            std = math.sqrt(1 / mean) / CUT_AT_TWO
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=rng)
        else:
            limit = math.sqrt(3 * scale / mean)
            nn.init.uniform_(layer.weight, -limit, limit, generator=rng)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def glorot_linear(
    inputs: int,
    outputs: int,
    rng: torch.Generator,
    scale: float | None = None,
    bias: bool = True,
    of: int | None = None,
) -> nn.Linear:
    """Create a linear layer on the CPU and initialize it by `initialise_glorot`.

    `of` is the number of inputs from which the variance of the weights is computed; None = `inputs`. If the outputs of
    two layers are added, both together act as one layer with more inputs. Then `of` is the number of inputs of both.
    """
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    return initialise_glorot(layer, rng, scale, of)


class Norm(nn.Module):
    """Optional LayerNorm over the last dimension, followed by an activation.

    Args:
        size: size of the last dimension.
        eps: ε added to the variance; None = no LayerNorm.
        act: activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, size: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.norm = None if eps is None else nn.LayerNorm(size, eps)
        self.act = getattr(nn, ACTIVATIONS[act])()

    def forward(self, x: Tensor) -> Tensor:
        """Apply LayerNorm and activation to x [..., size]; the dtype is unchanged."""
        return self.act(x if self.norm is None else self.norm(x).to(x.dtype))


class Dense(nn.Module):
    """MLP: hidden layers (linear, optional LayerNorm, activation), and an optional linear output layer.

    Args:
        inputs: number of input features.
        hidden: number, size, activation, normalization and initialization of the hidden layers.
        rng: CPU generator for the initialization.
        outputs: number of features of the output layer; None = no output layer.
        scale: initialization scale of the output layer; see `initialise_glorot`.
        norm: normalization and activation of the hidden layers; a class or function with the arguments of `Norm`.
    """

    def __init__(
        self,
        inputs: int,
        hidden: MLPSpec,
        rng: torch.Generator,
        outputs: int | None = None,
        scale: float | None = 1.0,
        norm: Callable[..., nn.Module] = Norm,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(hidden.count):
            layers.append(glorot_linear(inputs, hidden.units, rng, hidden.form.scale, hidden.form.bias))
            layers.append(norm(hidden.units, hidden.form.eps, hidden.act))
            inputs = hidden.units
        self.hidden = nn.Sequential(*layers)
        self.output = None if outputs is None else glorot_linear(inputs, outputs, rng, scale)
        self.output_size = inputs if outputs is None else outputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs [..., output_size] of x [..., inputs], in float32 even if the weights are bfloat16."""
        weight = next(self.parameters(), None)
        made = self.hidden(x if weight is None else x.to(weight.dtype))
        return to_float32(made if self.output is None else self.output(made))


class LayerNormGRU(nn.Module):
    """Gated recurrent unit with a joint LayerNorm over its three gates (code of arXiv:2010.02193).

        (r, c, u) = LayerNorm(W [h, x])        h' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) h

    r, c and u are the inputs of the reset gate, the candidate state and the update gate; σ is the sigmoid. The reset
    gate is applied after the norm. Because of the offset -1, the update gate is small when training starts, and the
    state changes slowly.

    Args:
        inputs: F; number of features of the input x.
        size: H; size of the state h.
        form: normalization, bias and initialization of the linear layer W.
        rng: CPU generator for the initialization.
    """

    def __init__(self, inputs: int, size: int, form: InitConfig, rng: torch.Generator) -> None:
        super().__init__()
        self.linear = glorot_linear(size + inputs, 3 * size, rng, form.scale, form.bias)
        self.norm = nn.Identity() if form.eps is None else nn.LayerNorm(3 * size, form.eps)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next state h' [..., H], with the dtype of h, from input x [..., F] and state h [..., H]."""
        joined = torch.cat([h, x.to(h.dtype)], -1).to(self.linear.weight.dtype)
        reset, candidate, update = self.norm(self.linear(joined)).to(h.dtype).chunk(3, -1)
        candidate = torch.tanh(reset.sigmoid() * candidate)
        return torch.lerp(h, candidate, (update - 1).sigmoid())


class PlainGRU(nn.Module):
    """Gated recurrent unit without LayerNorm (Cho et al. 2014, arXiv:1406.1078), in the variant of PlaNet.

        r = σ(W_r x + U_r h)    u = σ(W_u x + U_u h)    c = tanh(W_c x + r U_c h)    h' = (1 - u) c + u h

    In this variant, the reset gate r multiplies U_c h; in the paper it multiplies h. Each product with W or U has a
    bias. The matrices U are stacked to one matrix [3 H, H], which is initialized as orthogonal, as in Keras.

    Args:
        inputs: F; number of features of the input x.
        size: H; size of the state h.
        rng: CPU generator for the initialization.
    """

    def __init__(self, inputs: int, size: int, rng: torch.Generator) -> None:
        super().__init__()
        self.of_input = glorot_linear(inputs, 3 * size, rng, 1.0)
        self.of_state = glorot_linear(size, 3 * size, rng, 0.0)
        nn.init.orthogonal_(self.of_state.weight, generator=rng)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next state h' [..., H], with the dtype of h, from input x [..., F] and state h [..., H]."""
        kind = self.of_input.weight.dtype
        given = self.of_input(x.to(kind)).to(h.dtype).chunk(3, -1)
        kept = self.of_state(h.to(kind)).to(h.dtype).chunk(3, -1)
        reset, update = ((a + b).sigmoid() for a, b in zip(given[:2], kept[:2], strict=True))
        return torch.lerp(torch.tanh(given[2] + reset * kept[2]), h, update)


def cell(inputs: int, size: int, form: InitConfig | None, rng: torch.Generator) -> LayerNormGRU | PlainGRU:
    """Create a recurrent cell: a LayerNormGRU with the settings `form`, or a PlainGRU if `form` is None."""
    return PlainGRU(inputs, size, rng) if form is None else LayerNormGRU(inputs, size, form, rng)


def convolution(
    kind: type[Convolution],
    inputs: int,
    outputs: int,
    rng: torch.Generator,
    scale: float | None,
    bias: bool,
    size: int = 4,
    padding: int = 1,
) -> Convolution:
    """Create a convolution or transposed convolution with stride 2 on the CPU, and initialize it.

    `kind` is the class of the layer. The kernel has `size` × `size` pixels; `padding` is in pixels. With size 4 and
    padding 1, nn.Conv2d halves height and width of an image exactly, and nn.ConvTranspose2d doubles them. The weights
    are initialized by `initialise_glorot` with `scale`.
    """
    layer = kind(inputs, outputs, size, 2, padding, bias=bias, device="meta").to_empty(device="cpu")
    return initialise_glorot(layer, rng, scale)

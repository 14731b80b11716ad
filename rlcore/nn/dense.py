"""Networks of world models: hidden layers and recurrent cells, initialised as their papers have it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.precision import widen
from rlcore.nn.network_keys import ACTIVATIONS
from rlcore.nn.world_keys import Form, Layers

CUT_AT_TWO = 0.87962566103423978  # std of a standard normal that is cut at ±2


def initialise_glorot(layer: Any, rng: torch.Generator, scale: float | None = None, inputs: int | None = None) -> Any:
    """Weights of a linear or convolutional layer by the mean of its inputs and outputs (Glorot, Bengio 2010); biases 0.

    Args:
        layer: is changed.
        rng: CPU generator.
        scale: uniform of variance scale / mean (0: zeros), for outputs; None: a normal of variance 1 / mean, cut at two
            stds, for hidden layers (both arXiv:2301.04104v1's code).
        inputs: numbers that an output sums over, where another layer has some of them.

    Returns:
        The layer.
    """
    space = math.prod(getattr(layer, "kernel_size", (1,)))
    fan_in = getattr(layer, "in_channels", 0) or layer.in_features
    fan_out = getattr(layer, "out_channels", 0) or layer.out_features
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
    """A linear layer, on the CPU, by `initialise_glorot`; `of` is its `inputs`."""
    made: Any = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, device="cpu")
    return initialise_glorot(made, rng, scale, of)


class Norm(nn.Module):
    """LayerNorm over the last dimension, and the activation behind it; without `eps` the activation alone.

    Args:
        size: of that dimension.
        eps: added to the variance.
        act: a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, size: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.norm = None if eps is None else nn.LayerNorm(size, eps)
        self.act = getattr(nn, ACTIVATIONS[act])()

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size] of its dtype."""
        return self.act(x if self.norm is None else self.norm(x).to(x.dtype))


class Dense(nn.Module):
    """Hidden layers of (linear, LayerNorm, activation), then a linear output if one is asked for.

    Args:
        inputs: features in.
        hidden: the hidden layers.
        rng: CPU generator for the initialisation.
        outputs: features of a last linear layer; None = no such layer.
        scale: of its weights, as `initialise_glorot` has it.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Layers,
        rng: torch.Generator,
        outputs: int | None = None,
        scale: float | None = 1.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(hidden.count):
            layers.append(glorot_linear(inputs, hidden.units, rng, hidden.form.scale, hidden.form.bias))
            layers.append(Norm(hidden.units, hidden.form.eps, hidden.act))
            inputs = hidden.units
        self.hidden = nn.Sequential(*layers)
        self.output = None if outputs is None else glorot_linear(inputs, outputs, rng, scale)
        self.output_size = inputs if outputs is None else outputs

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., output_size], float32 or better, whatever the precision of the weights."""
        weight = next(self.parameters(), None)
        made = self.hidden(x if weight is None else x.to(weight.dtype))
        return widen(made if self.output is None else self.output(made))


class LayerNormGRU(nn.Module):
    """Gated recurrent unit with a LayerNorm over its three gates together (arXiv:2010.02193's code).

        (r, c, u) = LayerNorm(W [h, x])        h' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) h

    The reset gate acts behind the norm; the update gate begins near 0, so that what is remembered stays.

    Args:
        inputs: F, features of x.
        size: H.
        form: of its layer.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, inputs: int, size: int, form: Form, rng: torch.Generator) -> None:
        super().__init__()
        self.linear = glorot_linear(size + inputs, 3 * size, rng, form.scale, form.bias)
        self.norm = nn.Identity() if form.eps is None else nn.LayerNorm(3 * size, form.eps)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x [..., F], h [..., H] -> h' [..., H] of the precision of h."""
        joined = torch.cat([h, x.to(h.dtype)], -1).to(self.linear.weight.dtype)
        reset, candidate, update = self.norm(self.linear(joined)).to(h.dtype).chunk(3, -1)
        candidate = torch.tanh(reset.sigmoid() * candidate)
        return torch.lerp(h, candidate, (update - 1).sigmoid())


class PlainGRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), its reset behind the weights, as in PlaNet's code.

        r = σ(W_r x + U_r h)    u = σ(W_u x + U_u h)    c = tanh(W_c x + r U_c h)    h' = (1 - u) c + u h

    Each product has a bias. The weights of h begin orthogonal, as Keras has them.

    Args:
        inputs: F, features of x.
        size: H.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, inputs: int, size: int, rng: torch.Generator) -> None:
        super().__init__()
        self.of_input = glorot_linear(inputs, 3 * size, rng, 1.0)
        self.of_state = glorot_linear(size, 3 * size, rng, 0.0)
        nn.init.orthogonal_(self.of_state.weight, generator=rng)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x [..., F], h [..., H] -> h' [..., H] of the precision of h."""
        kind = self.of_input.weight.dtype
        given = self.of_input(x.to(kind)).to(h.dtype).chunk(3, -1)
        kept = self.of_state(h.to(kind)).to(h.dtype).chunk(3, -1)
        reset, update = ((a + b).sigmoid() for a, b in zip(given[:2], kept[:2], strict=True))
        return torch.lerp(torch.tanh(given[2] + reset * kept[2]), h, update)


def cell(inputs: int, size: int, form: Form | None, rng: torch.Generator) -> LayerNormGRU | PlainGRU:
    """The recurrent cell that `RecurrentKeys.cell` says."""
    return PlainGRU(inputs, size, rng) if form is None else LayerNormGRU(inputs, size, form, rng)


def convolution(
    kind: Any,
    inputs: int,
    outputs: int,
    rng: torch.Generator,
    scale: float | None,
    bias: bool,
    size: int = 4,
    padding: int = 1,
) -> Any:
    """A convolution of stride 2, which halves an image (nn.Conv2d), or doubles it (nn.ConvTranspose2d).

    `size` is of its kernel, in pixels; so is `padding`: with 4 and 1 it does so exactly.
    """
    made = nn.utils.skip_init(kind, inputs, outputs, size, 2, padding, bias=bias, device="cpu")
    return initialise_glorot(made, rng, scale)

"""Autoencoder of observations; actor, critics and decoder share its convolutions and the MLP of the vector keys.

    image keys    4 convolutions ──┬── linear, LayerNorm, tanh (actor's)  ──┐
                  (Trunk)          └── linear, LayerNorm, tanh (critics') ──┼── z ── linear, 4 transposed convolutions
    vector keys   MLP ─────────────────────────────────────────────────────┘    └── MLP, one linear layer per key

Yarats et al. 2021, arXiv:1910.01741, appendix "Encoder and decoder networks"; the MLPs are from SheepRL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.precision import to_float32
from rlcore.nn.cnn import pixels
from rlcore.nn.encoder import flatten
from rlcore.nn.mlp import MLP, linear
from rlcore.nn.network_keys import MLPConfig
from rlcore.spec import EnvSpec

FILTERS, KERNEL, STRIDES = 32, 3, (2, 1, 1, 1)
LEVELS = 32  # 5 bits


def initialise_orthogonal(module: nn.Module, rng: torch.Generator) -> None:
    """Initialize all layers of a module from a CPU generator; biases are zero.

    Linear layers are orthogonal (Saxe et al. 2014). Convolutions are delta-orthogonal (Xiao et al. 2018,
    arXiv:1806.05393): the center of the kernel is an orthogonal matrix with a gain of √2, all other weights are zero.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, generator=rng)
        elif isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.zeros_(layer.weight)
            with torch.no_grad():
                nn.init.orthogonal_(layer.weight[:, :, KERNEL // 2, KERNEL // 2], math.sqrt(2), generator=rng)
        else:
            continue
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


class Trunk(nn.Module):
    """Layers that actor and critics share: convolutions for the image keys, an MLP for the vector keys.

    Args:
        spec: spec of the environment.
        vectors: vector keys, concatenated in this order; () = none.
        images: image keys, concatenated along channels in this order; () = none. All images have the same height and
            the same width, and both are even.
        config: layers of the MLP.
        multiplier: multiplier of the 32 channels of each convolution.
        rng: CPU generator for the initialization.
    """

    # shape: channels, height and width after the convolutions; flat_size: their product; size: features of the MLP

    def __init__(
        self,
        spec: EnvSpec,
        vectors: Sequence[str],
        images: Sequence[str],
        config: MLPConfig,
        multiplier: int,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.spec, self.vectors, self.images = spec, tuple(vectors), tuple(images)
        self.shape, self.convolutions, self.mlp = (0, 0, 0), None, None
        if images:
            specs = [spec.obs[key] for key in images]
            (height, width), channels = specs[0].pixels, sum(part.channels for part in specs)
            layers: list[nn.Module] = []
            for stride in STRIDES:
                layers += [_convolution(nn.Conv2d, channels, FILTERS * multiplier, stride=stride), nn.ReLU()]
                height, width = ((side - KERNEL) // stride + 1 for side in (height, width))
                channels = FILTERS * multiplier
            self.shape, self.convolutions = (channels, height, width), nn.Sequential(*layers)
            initialise_orthogonal(self.convolutions, rng)
        self.flat_size, self.size = math.prod(self.shape), 0
        if vectors:
            self.mlp = MLP(sum(spec.obs[key].size for key in vectors), config, rng, gain=1.0)
            self.size = self.mlp.output_size

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Encode key -> [N, (frames,) *shape] to image features [N, flat_size] and vector features [N, size].

        Features are None if there are no keys of this kind.
        """
        seen = None if self.convolutions is None else self.convolutions(self._pixels(obs)).flatten(1)
        return seen, None if self.mlp is None else self.mlp(flatten(obs, self.spec, self.vectors, 1))

    def _pixels(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the images as [N, channels, height, width] in [0, 1]."""
        dtype = next(self.parameters()).dtype
        planes = [pixels(obs[key], self.spec.obs[key], 1) for key in self.images]
        parts = [part.to(dtype) if part.is_floating_point() else part.to(dtype) / 255 for part in planes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Encoder(nn.Module):
    """Encoder of observations to z: the shared trunk, and a separate projection of the image features.

    Args:
        trunk: shared layers.
        features: output features of the projection.
        rng: CPU generator for the initialization.
    """

    # output_size: size of z; z consists of the image features, followed by the vector features

    def __init__(self, trunk: Trunk, features: int, rng: torch.Generator) -> None:
        super().__init__()
        self.trunk, self.vectors, self.images = trunk, trunk.vectors, trunk.images
        self.projection = nn.Sequential()
        if self.images:
            layer = linear(trunk.flat_size, features, rng, gain=1.0)
            self.projection = nn.Sequential(layer, nn.LayerNorm(features), nn.Tanh())
        self.output_size = trunk.size + (features if self.images else 0)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Encode key -> [N, (frames,) *shape] to z [N, output_size], at least float32."""
        seen, felt = self.trunk(obs)
        parts = [felt] if seen is None else [self.projection(seen), *([] if felt is None else [felt])]
        parts = [to_float32(part) for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class Decoder(nn.Module):
    """Decoder of z to observations.

    Args:
        encoder: encoder that computes z.
        vectors: vector keys to decode, among those of the encoder.
        images: image keys to decode, among those of the encoder.
        config: layers of the MLP for vector keys.
        multiplier: multiplier of the 32 channels of each transposed convolution.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self,
        encoder: Encoder,
        vectors: Sequence[str],
        images: Sequence[str],
        config: MLPConfig,
        multiplier: int,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        trunk = encoder.trunk
        self.spec, self.vectors, self.images = trunk.spec, tuple(vectors), tuple(images)
        self.channels = [self.spec.obs[key].channels for key in images]
        self.deconvolutions, self.mlp, self.heads = None, None, nn.ModuleList()
        if images:
            channels, filters = trunk.shape[0], FILTERS * multiplier
            layers: list[nn.Module] = [linear(encoder.output_size, trunk.flat_size, rng), nn.ReLU()]
            layers.append(nn.Unflatten(1, trunk.shape))
            for _ in STRIDES[1:]:
                layers += [_convolution(nn.ConvTranspose2d, channels, filters), nn.ReLU()]
                channels = filters
            layers.append(_convolution(nn.ConvTranspose2d, channels, sum(self.channels), stride=2, output_padding=1))
            self.deconvolutions = nn.Sequential(*layers)
            initialise_orthogonal(self.deconvolutions, rng)
        if vectors:
            self.mlp = MLP(encoder.output_size, config, rng, gain=1.0)
            sizes = [self.spec.obs[key].size for key in vectors]
            self.heads.extend(linear(self.mlp.output_size, size, rng, gain=1.0) for size in sizes)

    def forward(self, z: Tensor) -> dict[str, Tensor]:
        """Decode z [N, F] to key -> images [N, channels, height, width] with all frames, or vectors [N, size]."""
        x, made = z.to(next(self.parameters()).dtype), dict[str, Tensor]()
        if self.deconvolutions is not None:
            planes = self.deconvolutions[:3](x).contiguous(memory_format=torch.channels_last)  # as in `pixels`
            made |= zip(self.images, self.deconvolutions[3:](planes).split(self.channels, 1), strict=True)
        if self.mlp is not None:
            hidden = self.mlp(x)
            made |= {key: head(hidden) for key, head in zip(self.vectors, self.heads, strict=True)}
        return made

    def noise_shapes(self, count: int) -> list[tuple[int, ...]]:
        """Return the shape of the uniform noise that `targets` needs, for each image key and `count` observations."""
        specs = [self.spec.obs[key] for key in self.images]
        return [(count, channels, *spec.pixels) for channels, spec in zip(self.channels, specs, strict=True)]

    def targets(self, obs: Mapping[str, Tensor], noise: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the targets for the outputs of `forward`, computed from observations key -> [N, (frames,) *shape].

        `noise` is uniform noise in [0, 1) with the shapes `noise_shapes(N)`.
        """
        seen = [pixels(obs[key], self.spec.obs[key], 1) for key in self.images]
        made = {key: five_bits(*pair) for key, *pair in zip(self.images, seen, noise, strict=True)}
        return made | {key: flatten(obs, self.spec, [key], 1) for key in self.vectors}


def five_bits(x: Tensor, noise: Tensor) -> Tensor:
    """Reduce pixels to 5 bits and add uniform noise within each level (Kingma and Dhariwal 2018, arXiv:1807.03039).

    Args:
        x: [...]; integers from 0 to 255, or real numbers from 0 to 1.
        noise: [...]; uniform in [0, 1), in units of one level.

    Returns:
        Pixels in [-½, ½), [...], with the dtype of the noise.
    """
    assert x.shape == noise.shape, (x.shape, noise.shape)
    levels = (x * LEVELS).floor().clamp(max=LEVELS - 1) if x.is_floating_point() else x // (256 // LEVELS)
    return (levels + noise) / LEVELS - 0.5


def _convolution(kind: Any, inputs: int, outputs: int, **more: int) -> Any:
    """Create a convolution with uninitialized weights."""
    return nn.utils.skip_init(kind, inputs, outputs, KERNEL, device="cpu", **more)

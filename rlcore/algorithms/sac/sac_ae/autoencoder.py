"""Autoencoder of observations for SAC-AE. Actor and critics share its convolutions and the MLP for vector keys.

    image keys    4 convolutions ──┬── linear, LayerNorm, tanh (actor's)  ──┐
                  (Trunk)          └── linear, LayerNorm, tanh (critics') ──┼── z ── linear, 4 transposed convolutions
    vector keys   MLP ─────────────────────────────────────────────────────┘    └── MLP, one linear layer per key

z is the latent vector. The networks for images are from Yarats et al. 2021, arXiv:1910.01741, appendix "Encoder and
decoder networks". The MLPs for vector keys are not in the paper; they are from SheepRL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from rlcore.functional.precision import to_float32
from rlcore.nn.encoder import flatten, pixels
from rlcore.nn.mlp import MLP, linear
from rlcore.nn.network_keys import MLPConfig
from rlcore.spec import EnvSpec

FILTERS, KERNEL, STRIDES = 32, 3, (2, 1, 1, 1)
LEVELS = 32  # 5 bits
Convolution = TypeVar("Convolution", nn.Conv2d, nn.ConvTranspose2d)


def initialise_orthogonal(module: nn.Module, rng: torch.Generator) -> None:
    """Initialize all linear layers and convolutions of a module with orthogonal weights and zero biases.

    The weights of linear layers are orthogonal matrices (Saxe et al. 2014). Convolutions are delta-orthogonal (Xiao et
    al. 2018, arXiv:1806.05393): the weights at the center of the kernel are an orthogonal matrix with a gain of √2, all
    other weights are zero. `rng` is a CPU generator.
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
    """Encoder layers that actor and critics share: convolutions for the image keys, an MLP for the vector keys.

    Args:
        spec: observation and action spaces of the environment.
        vectors: vector keys, concatenated in this order; () = none.
        images: image keys, concatenated along channels in this order; () = none. All images must have the same size;
            height and width must be even.
        config: layers of the MLP.
        multiplier: factor for the number of channels; each convolution has 32 · `multiplier` output channels.
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
                layers += [_convolution(nn.Conv2d, channels, FILTERS * multiplier, stride), nn.ReLU()]
                height, width = ((side - KERNEL) // stride + 1 for side in (height, width))
                channels = FILTERS * multiplier
            self.shape, self.convolutions = (channels, height, width), nn.Sequential(*layers)
            initialise_orthogonal(self.convolutions, rng)
        self.flat_size, self.size = math.prod(self.shape), 0
        if vectors:
            self.mlp = MLP(sum(spec.obs[key].size for key in vectors), config, rng, gain=1.0)
            self.size = self.mlp.output_size

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Encode observations to image features [N, flat_size] and vector features [N, size].

        `obs` maps keys to [N, *shape], or [N, frames, *shape] for keys with a frame stack. Image features are None if
        there are no image keys; vector features are None if there are no vector keys.
        """
        of_images = None if self.convolutions is None else self.convolutions(self._pixels(obs)).flatten(1)
        return of_images, None if self.mlp is None else self.mlp(flatten(obs, self.spec, self.vectors, 1))

    def _pixels(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return all images, concatenated along channels: [N, channels, height, width], scaled to [0, 1]."""
        dtype = next(self.parameters()).dtype
        planes = [pixels(obs[key], self.spec.obs[key], 1) for key in self.images]
        parts = [part.to(dtype) if part.is_floating_point() else part.to(dtype) / 255 for part in planes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Encoder(nn.Module):
    """Encoder of observations to the latent vector z.

    It consists of the trunk, which actor and critics share, and a projection of the image features. The actor and the
    critics have one `Encoder` each, with the same trunk but separate projections.

    Args:
        trunk: shared layers.
        features: number of output features of the projection.
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
        """Encode observations to the latent vectors z [N, output_size], in float32 or float64.

        `obs` maps keys to [N, *shape], or [N, frames, *shape] for keys with a frame stack.
        """
        of_images, of_vectors = self.trunk(obs)
        parts = [] if of_images is None else [self.projection(of_images)]
        parts = [to_float32(part) for part in (*parts, of_vectors) if part is not None]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class Decoder(nn.Module):
    """Decoder of the latent vector z to observations.

    Args:
        encoder: encoder whose latent vectors are decoded.
        vectors: vector keys to reconstruct, a subset of those of the encoder.
        images: image keys to reconstruct, a subset of those of the encoder.
        config: layers of the MLP for vector keys.
        multiplier: factor for the number of channels; each transposed convolution except the last has
            32 · `multiplier` output channels.
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
            last = nn.ConvTranspose2d(channels, sum(self.channels), KERNEL, 2, output_padding=1, device="meta")
            layers.append(last.to_empty(device="cpu"))
            self.deconvolutions = nn.Sequential(*layers)
            initialise_orthogonal(self.deconvolutions, rng)
        if vectors:
            self.mlp = MLP(encoder.output_size, config, rng, gain=1.0)
            sizes = [self.spec.obs[key].size for key in vectors]
            self.heads.extend(linear(self.mlp.output_size, size, rng, gain=1.0) for size in sizes)

    def forward(self, z: Tensor) -> dict[str, Tensor]:
        """Decode latent vectors z [N, F] to reconstructed observations, by key.

        Images are [N, channels, height, width], with the frames of a frame stack as channels. Vectors are [N, size].
        """
        x, made = z.to(next(self.parameters()).dtype), dict[str, Tensor]()
        if self.deconvolutions is not None:
            planes = self.deconvolutions[:3](x).contiguous(memory_format=torch.channels_last)  # as in `pixels`
            made |= zip(self.images, self.deconvolutions[3:](planes).split(self.channels, 1), strict=True)
        if self.mlp is not None:
            hidden = self.mlp(x)
            made |= {key: head(hidden) for key, head in zip(self.vectors, self.heads, strict=True)}
        return made

    def noise_shapes(self, count: int) -> list[tuple[int, ...]]:
        """Return the shapes of the noise that `targets` needs for `count` observations, one for each image key."""
        specs = [self.spec.obs[key] for key in self.images]
        return [(count, channels, *spec.pixels) for channels, spec in zip(self.channels, specs, strict=True)]

    def targets(self, obs: Mapping[str, Tensor], noise: Sequence[Tensor]) -> dict[str, Tensor]:
        """Compute the reconstruction targets of N observations, by key; shapes are those of the outputs of `forward`.

        Args:
            obs: key -> [N, *shape], or [N, frames, *shape] for keys with a frame stack.
            noise: uniform noise in [0, 1), one tensor for each image key, with the shapes `noise_shapes(N)`.

        Returns:
            Key -> images with 5-bit pixels and noise (see `five_bits`), or vectors without change.
        """
        images = [pixels(obs[key], self.spec.obs[key], 1) for key in self.images]
        of_images = {key: five_bits(*pair) for key, *pair in zip(self.images, images, noise, strict=True)}
        return of_images | {key: flatten(obs, self.spec, [key], 1) for key in self.vectors}


def five_bits(x: Tensor, noise: Tensor) -> Tensor:
    """Quantize pixels to 5 bits (32 levels) and add uniform noise (Kingma and Dhariwal 2018, arXiv:1807.03039).

    Args:
        x: [...]; integers from 0 to 255, or floating point numbers from 0 to 1.
        noise: [...]; uniform in [0, 1), in units of the distance between two levels.

    Returns:
        Pixels in [-½, ½), [...], with the dtype of the noise.
    """
    assert x.shape == noise.shape, (x.shape, noise.shape)
    levels = (x * LEVELS).floor().clamp(max=LEVELS - 1) if x.is_floating_point() else x // (256 // LEVELS)
    return (levels + noise) / LEVELS - 0.5


def _convolution(kind: type[Convolution], inputs: int, outputs: int, stride: int = 1) -> Convolution:
    """Create a convolution with uninitialized weights."""
    return kind(inputs, outputs, KERNEL, stride, device="meta").to_empty(device="cpu")

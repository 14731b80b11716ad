"""Images of world models: stages of convolutions that halve an image to 4 × 4 pixels, and those that undo them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.functional.precision import widen
from rlcore.nn.cnn import pixels, scale_pixels
from rlcore.nn.dense import Norm, convolution, linear
from rlcore.nn.world_keys import NormConfig
from rlcore.spec import ArraySpec

SMALL = 4  # pixels a side, where stages end
FEW = 4  # channels


def stages(specs: Sequence[ArraySpec]) -> int:
    """Halvings of images of that size, a power of two, down to 4 × 4 pixels."""
    return int(math.log2(specs[0].pixels[0] // SMALL))


class PixelNorm(nn.Module):
    """LayerNorm of each pixel's channels, and the activation behind it.

    Of a few channels it is computed plane by plane: torch's kernel goes pixel by pixel, and takes three times as long.

    Args:
        channels: C.
        norm: of them.
        act: a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, channels: int, norm: NormConfig, act: str) -> None:
        super().__init__()
        self.inner = Norm(channels, norm.eps, act)
        self.by_planes = channels <= FEW

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, height, width] -> the same."""
        norm = self.inner.norm
        if norm is None or not self.by_planes:
            return self.inner(x.movedim(1, -1)).movedim(-1, 1)
        wide = widen(x)
        centered = wide - wide.mean(1, keepdim=True)
        scale = (centered.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        weight, bias = (part.unsqueeze(-1).unsqueeze(-1) for part in (norm.weight, norm.bias))
        return self.inner.act((centered * scale * weight + bias).to(x.dtype))

    def extra_repr(self) -> str:
        """Facts that decide compiled code."""
        return f"by_planes={self.by_planes}"


class ImageEncoder(nn.Module):
    """Images, their channels one behind the other, to a vector: 2ⁱ m channels after stage i.

    Args:
        specs: the images, of one size.
        multiplier: m.
        act: activation.
        norm: of each pixel's channels.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self, specs: Sequence[ArraySpec], multiplier: int, act: str, norm: NormConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.specs, channels = tuple(specs), sum(spec.channels for spec in specs)
        layers: list[nn.Module] = []
        for stage in range(stages(specs)):
            outputs = 2**stage * multiplier
            layers.append(convolution(nn.Conv2d, channels, outputs, rng, None, norm.eps is None))
            layers.append(PixelNorm(outputs, norm, act))
            channels = outputs
        self.layers = nn.Sequential(*layers)
        self.output_size = channels * SMALL**2

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Images [N, channels, height, width] as `show` gives them -> [N, output_size]."""
        x = torch.cat([*images], 1) if len(images) > 1 else images[0]
        weight = next(self.parameters())
        return widen(self.layers(x.to(weight.dtype))).flatten(1)


def show(image: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    """An image [*lead, *shape] of an environment as [N, channels, height, width] float32, from -½ to ½."""
    return scale_pixels(pixels(image, spec, lead).contiguous())


class ImageDecoder(nn.Module):
    """A vector to images, as `ImageEncoder` sees them.

    Args:
        inputs: F, of the vector.
        specs: the images, of one size.
        multiplier: m.
        act: activation.
        norm: of each pixel's channels.
        rng: CPU generator for the initialisation.
        scale: of the first layer's weights, as `rlcore.nn.dense.initialise` has it.
    """

    def __init__(
        self,
        inputs: int,
        specs: Sequence[ArraySpec],
        multiplier: int,
        act: str,
        norm: NormConfig,
        rng: torch.Generator,
        scale: float | None,
    ) -> None:
        super().__init__()
        self.channels, count = [spec.channels for spec in specs], stages(specs)
        channels = 2 ** (count - 1) * multiplier
        self.project = linear(inputs, channels * SMALL**2, rng, scale)
        layers: list[nn.Module] = []
        for stage in reversed(range(count - 1)):
            outputs = 2**stage * multiplier
            layers.append(convolution(nn.ConvTranspose2d, channels, outputs, rng, None, norm.eps is None))
            layers.append(PixelNorm(outputs, norm, act))
            channels = outputs
        layers.append(convolution(nn.ConvTranspose2d, channels, sum(self.channels), rng, None, True))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        """[N, F] -> of each image, [N, channels, height, width]."""
        made = self.project(x.to(self.project.weight.dtype)).unflatten(1, (-1, SMALL, SMALL))
        images = widen(self.layers(made))
        return [*images.split(self.channels, 1)] if len(self.channels) > 1 else [images]

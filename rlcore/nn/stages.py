"""Images of world models: stages of convolutions that halve an image, and those that undo them.

Padded stages (Dreamer V3's) halve an image of any power of two down to 4 × 4 pixels, and double it likewise. V1 and V2
have four without padding, of 64 × 64 pixels: 64, 31, 14, 6, 2 on a side, and back in kernels of 5, 5, 6 and 6 pixels
1, 5, 13, 30, 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.functional.precision import widen
from rlcore.nn.cnn import pixels, scale_pixels
from rlcore.nn.dense import Norm, convolution, glorot_linear
from rlcore.nn.world_keys import Stages
from rlcore.spec import ArraySpec

SMALL = 4  # pixels a side, where padded stages end
FEW = 4  # channels
KERNEL, KERNELS = 4, (5, 5, 6, 6)  # pixels a side; of stages, and of those that undo four without padding
SIDE = 64  # pixels, of images of stages without padding


def sides(side: int, padded: bool) -> list[int]:
    """Pixels a side of an image and after each of its stages."""
    found = [side]
    while found[-1] > SMALL if padded else len(found) <= len(KERNELS):
        found.append(found[-1] // 2 if padded else (found[-1] - KERNEL) // 2 + 1)
    return found


class PixelNorm(nn.Module):
    """LayerNorm of each pixel's channels, and the activation behind it.

    Of a few channels it is computed plane by plane: torch's kernel goes pixel by pixel, and takes three times as long.
    Convolutions before and behind it have the channels of a pixel together (`rlcore.nn.cnn.pixels`).

    Args:
        channels: C.
        eps: of the norm; None: there is none.
        act: a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, channels: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.inner = Norm(channels, eps, act)
        self.by_planes = channels <= FEW

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, height, width] -> the same."""
        norm = self.inner.norm
        if norm is None:
            return self.inner.act(x.contiguous(memory_format=torch.channels_last))
        if not self.by_planes:
            return self.inner(x.movedim(1, -1)).movedim(-1, 1)
        wide = widen(x.contiguous())
        centered = wide - wide.mean(1, keepdim=True)
        scale = (centered.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        weight, bias = (part.unsqueeze(-1).unsqueeze(-1) for part in (norm.weight, norm.bias))
        normed = self.inner.act((centered * scale * weight + bias).to(x.dtype))
        return normed.contiguous(memory_format=torch.channels_last)

    def extra_repr(self) -> str:
        """Facts that decide compiled code."""
        return f"by_planes={self.by_planes}"


class ImageEncoder(nn.Module):
    """Images, their channels one behind the other, to a vector: 2ⁱ m channels after stage i.

    Args:
        specs: the images, of one size.
        stages: the convolutions.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, specs: Sequence[ArraySpec], stages: Stages, rng: torch.Generator) -> None:
        super().__init__()
        self.specs, channels, form = tuple(specs), sum(spec.channels for spec in specs), stages.form
        found = sides(specs[0].pixels[0], stages.padded)
        layers: list[nn.Module] = []
        for stage in range(len(found) - 1):
            outputs, padding = 2**stage * stages.multiplier, int(stages.padded)
            layers.append(convolution(nn.Conv2d, channels, outputs, rng, form.scale, form.bias, KERNEL, padding))
            layers.append(PixelNorm(outputs, form.eps, stages.act))
            channels = outputs
        self.layers = nn.Sequential(*layers)
        self.output_size = channels * found[-1] ** 2

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Images [N, channels, height, width] as `show` gives them -> [N, output_size]."""
        x = torch.cat([*images], 1) if len(images) > 1 else images[0]
        weight = next(self.parameters())
        return widen(self.layers(x.to(weight.dtype))).flatten(1)


def show(image: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    """An image [*lead, *shape] of an environment as [N, channels, height, width] float32, from -½ to ½."""
    return scale_pixels(pixels(image, spec, lead))


def restore(image: Tensor, spec: ArraySpec) -> Tensor:
    """`show` undone: [..., channels, height, width] -> [..., *shape] float32, of integers from 0 to 255."""
    frames, lead = spec.shape[:-3], image.shape[:-3]
    parted = image.reshape(*lead, *frames, -1, *spec.pixels)
    parted = parted if spec.channels_first else parted.movedim(-3, -1)
    return parted if spec.dtype.startswith("float") else (parted + 0.5) * 255


class ImageDecoder(nn.Module):
    """A vector to images, as `ImageEncoder` sees them.

    Args:
        inputs: F, of the vector.
        specs: the images, of one size.
        stages: the convolutions, undone in reverse order.
        rng: CPU generator for the initialisation.
        scale: of the first layer's weights, as `rlcore.nn.dense.initialise_glorot` has it.
    """

    def __init__(
        self, inputs: int, specs: Sequence[ArraySpec], stages: Stages, rng: torch.Generator, scale: float | None
    ) -> None:
        super().__init__()
        self.channels, found, form = (
            [spec.channels for spec in specs],
            sides(specs[0].pixels[0], stages.padded),
            stages.form,
        )
        count, padding = len(found) - 1, int(stages.padded)
        kernels = [KERNEL] * count if stages.padded else [*KERNELS]
        channels = 2 ** (count - 1) * stages.multiplier  # as the last stage has them
        self.side = found[-1]
        if not stages.padded:  # a vector of as many numbers, from one pixel on
            channels, self.side = channels * self.side**2, 1
        self.project = glorot_linear(inputs, channels * self.side**2, rng, scale)
        layers: list[nn.Module] = []
        for stage in reversed(range(count - 1)):
            outputs, kernel = 2**stage * stages.multiplier, kernels.pop(0)
            layers.append(
                convolution(nn.ConvTranspose2d, channels, outputs, rng, form.scale, form.bias, kernel, padding)
            )
            layers.append(PixelNorm(outputs, form.eps, stages.act))
            channels = outputs
        last, total = kernels.pop(), sum(self.channels)
        layers.append(convolution(nn.ConvTranspose2d, channels, total, rng, form.scale, True, last, padding))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        """[N, F] -> of each image, [N, channels, height, width]."""
        made = self.project(x.to(self.project.weight.dtype)).unflatten(1, (-1, self.side, self.side))
        made = made.contiguous(memory_format=torch.channels_last)
        images = widen(self.layers(made))
        return [*images.split(self.channels, 1)] if len(self.channels) > 1 else [images]

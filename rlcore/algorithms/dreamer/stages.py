"""Image encoder and decoder of world models, as stages of convolutions.

Dreamer V3 has stages with padding. The side of an image is a power of two; each stage of the encoder halves it, down
to 4 × 4 pixels, and each stage of the decoder doubles it. Dreamer V1 and V2 have four stages without padding for
images of 64 × 64 pixels. The image sides are 64, 31, 14, 6, 2 in the encoder (kernels of 4 pixels), and 1, 5, 13, 30,
64 in the decoder (kernels of 5, 5, 6 and 6 pixels).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import Norm, convolution, glorot_linear
from rlcore.algorithms.dreamer.world_keys import CNNSpec
from rlcore.functional.precision import to_float32
from rlcore.nn.cnn import pixels, scale_pixels
from rlcore.spec import ArraySpec

SMALL = 4  # image side in pixels after the last padded stage
FEW = 4  # largest number of channels for which PixelNorm is computed plane by plane
KERNEL, KERNELS = 4, (5, 5, 6, 6)  # kernel sizes in pixels: of all stages except those of the decoder without padding
SIDE = 64  # image side in pixels for stages without padding


def sides(side: int, padded: bool) -> list[int]:
    """Return the image side in pixels before the first stage and after each stage."""
    found = [side]
    while found[-1] > SMALL if padded else len(found) <= len(KERNELS):
        found.append(found[-1] // 2 if padded else (found[-1] - KERNEL) // 2 + 1)
    return found


class PixelNorm(nn.Module):
    """LayerNorm over the channels of each pixel, followed by an activation.

    With up to 4 channels it is computed plane by plane, because PyTorch's kernel iterates over pixels and takes three
    times as long. The convolutions before and after it use channels_last (`rlcore.nn.cnn.pixels`).

    Args:
        channels: C; number of channels.
        eps: ε added to the variance; None = no norm.
        act: activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, channels: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.inner = Norm(channels, eps, act)
        self.by_planes = channels <= FEW

    def forward(self, x: Tensor) -> Tensor:
        """Apply norm and activation to x [N, C, height, width]; the shape is unchanged."""
        norm = self.inner.norm
        if norm is None:
            return self.inner.act(x.contiguous(memory_format=torch.channels_last))
        if not self.by_planes:
            return self.inner(x.movedim(1, -1)).movedim(-1, 1)
        wide = to_float32(x.contiguous())
        centered = wide - wide.mean(1, keepdim=True)
        scale = (centered.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        weight, bias = (part.unsqueeze(-1).unsqueeze(-1) for part in (norm.weight, norm.bias))
        normed = self.inner.act((centered * scale * weight + bias).to(x.dtype))
        return normed.contiguous(memory_format=torch.channels_last)

    def extra_repr(self) -> str:
        """Return the settings that affect compiled code."""
        return f"by_planes={self.by_planes}"


class ImageEncoder(nn.Module):
    """Encoder of images, concatenated along channels, to one vector. Stage i has 2ⁱ `multiplier` channels.

    Args:
        specs: specs of the images, which all have the same size.
        stages: stages of convolutions.
        rng: CPU generator for the initialization.
    """

    def __init__(self, specs: Sequence[ArraySpec], stages: CNNSpec, rng: torch.Generator) -> None:
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
        """Encode images [N, channels, height, width], preprocessed by `show`, to [N, output_size]."""
        x = torch.cat([*images], 1) if len(images) > 1 else images[0]
        weight = next(self.parameters())
        return to_float32(self.layers(x.to(weight.dtype))).flatten(1)


def show(image: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    """Preprocess an environment's image [*lead, *shape] to [N, channels, height, width] float32 in [-½, ½]."""
    return scale_pixels(pixels(image, spec, lead))


def restore(image: Tensor, spec: ArraySpec) -> Tensor:
    """Invert `show`: [..., channels, height, width] in [-½, ½] -> [..., *shape] float32.

    If the environment's pixels are integers, the result is from 0 to 255.
    """
    frames, lead = spec.shape[:-3], image.shape[:-3]
    parted = image.reshape(*lead, *frames, -1, *spec.pixels)
    parted = parted if spec.channels_first else parted.movedim(-3, -1)
    return parted if spec.dtype.startswith("float") else (parted + 0.5) * 255


class ImageDecoder(nn.Module):
    """Decoder of a vector to images, in the format that `ImageEncoder` takes.

    Args:
        inputs: F; features of the vector.
        specs: specs of the images, which all have the same size.
        stages: stages of the encoder; the decoder has transposed convolutions in reverse order.
        rng: CPU generator for the initialization.
        scale: initialization scale of the first layer; see `dense.initialise_glorot`.
    """

    def __init__(
        self, inputs: int, specs: Sequence[ArraySpec], stages: CNNSpec, rng: torch.Generator, scale: float | None
    ) -> None:
        super().__init__()
        self.channels, found, form = (
            [spec.channels for spec in specs],
            sides(specs[0].pixels[0], stages.padded),
            stages.form,
        )
        count, padding = len(found) - 1, int(stages.padded)
        kernels = [KERNEL] * count if stages.padded else [*KERNELS]
        channels = 2 ** (count - 1) * stages.multiplier  # channels of the encoder's last stage
        self.side = found[-1]
        if not stages.padded:  # start with one pixel that has as many channels as the encoder has outputs
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
        """Decode x [N, F] to a list of images [N, channels, height, width]."""
        made = self.project(x.to(self.project.weight.dtype)).unflatten(1, (-1, self.side, self.side))
        made = made.contiguous(memory_format=torch.channels_last)
        images = to_float32(self.layers(made))
        return [*images.split(self.channels, 1)] if len(self.channels) > 1 else [images]

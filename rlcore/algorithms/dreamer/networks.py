"""Networks of world models: CNNs that encode and decode images, and `Networks`, the factories of all networks.

A stage of a CNN is a convolution with stride 2, LayerNorm and an activation.

Images are square. The convolutions of Dreamer V3 have padding, and the height of an image must be a power of two. Each
stage of the encoder halves height and width, down to 4 × 4 pixels, and each stage of the decoder doubles them. Dreamer
V1 and V2 have four stages without padding, for images of 64 × 64 pixels. The heights are 64, 31, 14, 6, 2 in the
encoder (kernels of 4 × 4 pixels), and 1, 5, 13, 30, 64 in the decoder (kernels of 5, 5, 6 and 6 pixels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import Dense, Norm, cell, convolution, glorot_linear
from rlcore.algorithms.dreamer.world_keys import CNNSpec, MLPSpec
from rlcore.functional.precision import to_float32
from rlcore.nn.encoder import pixels, scale_pixels
from rlcore.spec import ArraySpec

SMALL = 4  # image side in pixels after the last padded stage
FEW = 4  # largest number of channels for which PixelNorm is computed plane by plane
KERNEL, KERNELS = 4, (5, 5, 6, 6)  # kernel sizes in pixels: of all stages except those of the decoder without padding
SIDE = 64  # image side in pixels for stages without padding


def sides(side: int, padded: bool) -> list[int]:
    """Return the height of a square image, in pixels, before the first stage of the encoder and after each stage.

    `side` is the height of the encoder's input. `padded` is true if the convolutions have padding.
    """
    found = [side]
    while found[-1] > SMALL if padded else len(found) <= len(KERNELS):
        found.append(found[-1] // 2 if padded else (found[-1] - KERNEL) // 2 + 1)
    return found


class PixelNorm(nn.Module):
    """LayerNorm over the channels of each pixel, followed by an activation.

    If there are at most 4 channels, the norm is computed with elementwise operations on each channel. PyTorch's
    LayerNorm processes one pixel after the other, which then takes three times as long. The result is channels_last,
    the memory format of the convolutions (see `rlcore.nn.encoder.pixels`).

    Args:
        channels: C; number of channels.
        eps: ε added to the variance; None = no LayerNorm.
        act: activation, a key of `rlcore.nn.network_keys.ACTIVATIONS`.
    """

    def __init__(self, channels: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.inner = Norm(channels, eps, act)
        self.by_planes = channels <= FEW

    def forward(self, x: Tensor) -> Tensor:
        """Apply LayerNorm and activation to x [N, C, height, width]; the shape is unchanged."""
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
        """Return the settings as text for `repr`."""
        return f"by_planes={self.by_planes}"


class ImageFeatures(nn.Module):
    """Base class of modules that encode images [N, channels, height, width], one per spec, to [N, output_size]."""

    output_size: int


class ImageEncoder(ImageFeatures):
    """CNN that encodes one or several images to one vector. The channels of all images are concatenated.

    Args:
        specs: specs of the images. All have the same height and width.
        stages: settings of the convolutions; stage i = 0, 1, … has 2ⁱ · `stages.multiplier` output channels.
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
        """Encode images [N, channels, height, width], one per spec and preprocessed by `show`, to [N, output_size]."""
        x = torch.cat([*images], 1) if len(images) > 1 else images[0]
        weight = next(self.parameters())
        return to_float32(self.layers(x.to(weight.dtype))).flatten(1)


def show(image: Tensor, spec: ArraySpec, lead: int) -> Tensor:
    """Preprocess images [*lead, *shape] of an environment to [N, channels, height, width] float32.

    `lead` is the number of leading dimensions, which are flattened to N. Integer pixels are scaled from 0 to 255 to
    [-½, ½]; floating-point pixels are unchanged.
    """
    return scale_pixels(pixels(image, spec, lead))


def restore(image: Tensor, spec: ArraySpec) -> Tensor:
    """Convert preprocessed images [..., channels, height, width] back to [..., *shape] float32, the inverse of `show`.

    If the environment's pixels are integers, values are scaled from [-½, ½] to 0 to 255 (without rounding).
    """
    frames, lead = spec.shape[:-3], image.shape[:-3]
    parted = image.reshape(*lead, *frames, -1, *spec.pixels)
    parted = parted if spec.channels_first else parted.movedim(-3, -1)
    return parted if spec.dtype.startswith("float") else (parted + 0.5) * 255


class ImageDecoder(nn.Module):
    """CNN that decodes a vector to one or several images, in the format of the images that `ImageEncoder` encodes.

    Args:
        inputs: F; number of elements of the vector.
        specs: specs of the images. All have the same height and width.
        stages: settings of the encoder's convolutions. The decoder has transposed convolutions with the same numbers of
            channels in reverse order.
        rng: CPU generator for the initialization.
        scale: initialization scale of the first layer, a linear layer; see `dense.initialise_glorot`.
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
        """Decode vectors x [N, F] to images: for each element of `specs`, a tensor [N, channels, height, width]."""
        made = self.project(x.to(self.project.weight.dtype)).unflatten(1, (-1, self.side, self.side))
        made = made.contiguous(memory_format=torch.channels_last)
        images = to_float32(self.layers(made))
        return [*images.split(self.channels, 1)] if len(self.channels) > 1 else [images]


class Networks(NamedTuple):
    """Functions or classes that create the networks of a world model; the defaults are those of the papers.

    Attributes:
        cell: recurrent cell of the RSSM, (inputs F, size H, form, rng) -> module (x [..., F], h [..., H]) -> [..., H];
            see `dense.cell`.
        norm: normalization and activation after each hidden linear layer, (size, eps, act) -> module
            [..., size] -> [..., size]; see `dense.Norm`.
        image_encoder: CNN with the arguments, attributes and outputs of `ImageEncoder`.
        image_decoder: CNN with the arguments and outputs of `ImageDecoder`.
    """

    cell: Callable[..., nn.Module] = cell
    norm: Callable[..., nn.Module] = Norm
    image_encoder: Callable[..., ImageFeatures] = ImageEncoder
    image_decoder: Callable[..., nn.Module] = ImageDecoder

    def dense(
        self,
        inputs: int,
        hidden: MLPSpec,
        rng: torch.Generator,
        outputs: int | None = None,
        scale: float | None = 1.0,
    ) -> Dense:
        """Create a `Dense` with these arguments and with the normalization `norm`."""
        return Dense(inputs, hidden, rng, outputs, scale, self.norm)


DEFAULT = Networks()

"""CNNs of Dreamer V3.5: convolutions with stride 1, max-pooling in the encoder, enlargement in the decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3_5.layer_keys import DecoderConfig, EncoderConfig, mlp
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import BlockLinear, NormFactory
from rlcore.algorithms.dreamer.networks import ImageFeatures
from rlcore.functional.precision import to_float32
from rlcore.spec import ArraySpec


def same_convolution(inputs: int, outputs: int, size: int) -> nn.Conv2d:
    """Create a convolution with stride 1 whose outputs are as large as its inputs; `initialise` sets its weights."""
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


class PoolingEncoder(ImageFeatures):
    """CNN that encodes one or several images to one vector. The channels of all images are concatenated.

    A stage is a convolution, a max-pooling that halves height and width, RMSNorm and an activation.

    Args:
        specs: specs of the images. All have the same height and width.
        keys: config of the encoder.
        norm: creates RMSNorm and activation for a number of channels.
    """

    def __init__(self, specs: Sequence[ArraySpec], keys: EncoderConfig, norm: NormFactory) -> None:
        super().__init__()
        layers, inputs = list[nn.Module](), sum(spec.channels for spec in specs)
        for outputs in keys.channels:
            layers += [same_convolution(inputs, outputs, keys.cnn_kernel_size), nn.MaxPool2d(2), norm(outputs)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.output_size = inputs * (specs[0].pixels[0] >> len(keys.channels)) ** 2

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Encode images [N, channels, height, width], one per spec, to [N, output_size]."""
        weight = next(self.parameters())
        return to_float32(self.layers(torch.cat([*images], 1).to(weight.dtype))).flatten(1)


class UpsampledConv(nn.Conv2d):
    """Convolution of an image that is enlarged to double height and width, each pixel to 2 × 2 equal ones.

    It is computed on the small image. A kernel of k × k pixels covers fewer different pixels of the small image; for
    each of the four positions in a group of 2 × 2 pixels, the weights of equal pixels are added. With k = 5, this takes
    about a third of the multiplications.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        size: k; an odd number of pixels.

    Attributes:
        taps: [2, small kernel, k]; 1 if a pixel of the small kernel is the pixel of the kernel, for both positions.
    """

    taps: Tensor

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__(inputs, outputs, size)
        reach = (size // 2 + 1) // 2  # of the small kernel, in pixels
        offsets = torch.arange(size) - size // 2
        seen = (torch.arange(2).unsqueeze(-1) + offsets).div(
            2, rounding_mode="floor"
        )  # [2, k]: pixel of the small image
        taps = (seen.unsqueeze(1) == torch.arange(-reach, reach + 1).unsqueeze(-1)).float()  # [2, small kernel, k]
        self.register_buffer("taps", taps, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return images [N, outputs, 2 height, 2 width] of x [N, inputs, height, width]."""
        taps = self.taps.to(self.weight.dtype)
        small = torch.einsum("oiyx,pay,qbx->opqiab", self.weight, taps, taps).flatten(0, 2)
        bias = None if self.bias is None else self.bias.repeat_interleave(4)
        return F.pixel_shuffle(F.conv2d(x, small, bias, padding=taps.shape[1] // 2), 2)


class UpsamplingDecoder(nn.Module):
    """CNN that decodes the features of a model state to one or several images.

    The features are mapped to small images with RMSNorm and activation. Each stage doubles height and width and applies
    a convolution, followed by RMSNorm and an activation, except in the last stage. Integer pixels, which are scaled to
    [-½, ½], are predicted as σ(x) - ½.

    Args:
        sizes: size of the stochastic state z and of the deterministic state h; the features are [z, h].
        specs: specs of the images. All have the same height and width.
        keys: config of the decoder.
        norm: creates RMSNorm and activation of a vector.
        channel_norm: creates RMSNorm and activation for a number of channels.
        rng: CPU generator, which `Dense` needs; `initialise` sets the weights later.
    """

    def __init__(
        self,
        sizes: tuple[int, int],
        specs: Sequence[ArraySpec],
        keys: DecoderConfig,
        norm: NormFactory,
        channel_norm: NormFactory,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.sizes, self.specs, channels = sizes, tuple(specs), keys.channels
        self.side, self.blocks = specs[0].pixels[0] >> len(channels), keys.block_space
        units, (stoch, deter) = channels[-1] * self.side**2, sizes
        if self.blocks:
            self.of_deter = BlockLinear(deter, units, self.blocks)
            self.of_stoch = Dense(stoch, mlp(2 * keys.dense_units, 1), rng, units, norm=norm)
        else:
            self.of_state = nn.Linear(stoch + deter, units)
        layers: list[nn.Module] = [channel_norm(channels[-1])]
        for inputs, outputs in zip(channels[:0:-1], channels[-2::-1], strict=True):
            layers += [UpsampledConv(inputs, outputs, keys.cnn_kernel_size), channel_norm(outputs)]
        self.last = UpsampledConv(channels[0], sum(spec.channels for spec in specs), keys.cnn_kernel_size)
        self.layers = nn.Sequential(*layers)

    def forward(self, feat: Tensor) -> list[Tensor]:
        """Decode features [N, F] to images: for each of the specs, a tensor [N, channels, height, width]."""
        kind = self.last.weight.dtype
        if self.blocks:
            stoch, deter = feat.split(self.sizes, -1)
            made = self.of_deter(deter.unflatten(-1, (self.blocks, -1))).flatten(-2) + self.of_stoch(stoch).to(kind)
        else:
            made = self.of_state(feat.to(kind))
        images = to_float32(self.last(self.layers(made.unflatten(1, (-1, self.side, self.side)))))
        parts = images.split([spec.channels for spec in self.specs], 1)
        return [
            part if spec.dtype.startswith("float") else part.sigmoid() - 0.5
            for part, spec in zip(parts, self.specs, strict=True)
        ]

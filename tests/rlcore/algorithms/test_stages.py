"""Stages of convolutions of both kinds, by their sizes and their formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rlcore.algorithms.dreamer.stages import ImageDecoder, ImageEncoder, sides
from rlcore.algorithms.dreamer.world_keys import CNNSpec, InitConfig
from rlcore.spec import ArraySpec

IMAGE = ArraySpec((3, 64, 64), "uint8", kind="image")


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_sides_of_stages() -> None:
    # Ha and Schmidhuber 2018, arXiv:1803.10122, A.1: (64 - 4) / 2 + 1 = 31, and so on
    assert sides(64, padded=False) == [64, 31, 14, 6, 2]
    assert sides(32, padded=True) == [32, 16, 8, 4]


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_stages_without_padding_are_plain_convolutions_and_come_back(eps: float | None) -> None:
    stages, x = CNNSpec(2, "elu", InitConfig(eps), padded=False), torch.rand(2, 3, 64, 64, generator=rng())
    encoder = ImageEncoder([IMAGE], stages, rng())
    made = x
    for layer, norm in zip(encoder.layers[::2], encoder.layers[1::2], strict=True):
        made = F.conv2d(made, layer.weight, layer.bias, stride=2)
        if eps is not None:
            scale, shift = (part[:, None, None] for part in (norm.inner.norm.weight, norm.inner.norm.bias))
            variance, mean = torch.var_mean(made, 1, correction=0, keepdim=True)
            made = (made - mean) / (variance + eps).sqrt() * scale + shift
        made = F.elu(made)
    assert encoder.output_size == 16 * 2 * 2
    torch.testing.assert_close(encoder([x]), made.flatten(1))
    decoder = ImageDecoder(9, [IMAGE], stages, rng(), 1.0)
    assert [layer.kernel_size[0] for layer in decoder.layers[::2]] == [5, 5, 6, 6]
    assert [tuple(layer.weight.shape[:2]) for layer in decoder.layers[::2]] == [(64, 8), (8, 4), (4, 2), (2, 3)]
    (image,) = decoder(torch.rand(2, 9, generator=rng()))
    assert image.shape == x.shape

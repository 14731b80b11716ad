"""Convolution stages with and without padding, compared with published sizes and the formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rlcore.algorithms.dreamer.networks import ImageDecoder, ImageEncoder, sides
from rlcore.algorithms.dreamer.world_keys import CNNSpec, InitConfig
from rlcore.spec import ArraySpec

IMAGE = ArraySpec((3, 64, 64), "uint8", kind="image")


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_sides_match_published_sizes() -> None:
    # Ha and Schmidhuber 2018, arXiv:1803.10122, A.1: (64 - 4) / 2 + 1 = 31, and so on
    assert sides(64, padded=False) == [64, 31, 14, 6, 2]
    assert sides(32, padded=True) == [32, 16, 8, 4]


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_unpadded_stages_match_plain_convolutions(eps: float | None) -> None:
    stages, x = CNNSpec(2, "elu", InitConfig(eps), padded=False), torch.rand(2, 3, 64, 64, generator=rng())
    encoder = ImageEncoder([IMAGE], stages, rng())
    features = x
    for layer, norm in zip(encoder.layers[::2], encoder.layers[1::2], strict=True):
        features = F.conv2d(features, layer.weight, layer.bias, stride=2)
        if eps is not None:
            scale, shift = (part[:, None, None] for part in (norm.inner.norm.weight, norm.inner.norm.bias))
            variance, mean = torch.var_mean(features, 1, correction=0, keepdim=True)
            features = (features - mean) / (variance + eps).sqrt() * scale + shift
        features = F.elu(features)
    assert encoder.output_size == 16 * 2 * 2
    torch.testing.assert_close(encoder([x]), features.flatten(1))
    decoder = ImageDecoder(9, [IMAGE], stages, rng(), 1.0)
    assert [layer.kernel_size[0] for layer in decoder.layers[::2]] == [5, 5, 6, 6]
    assert [tuple(layer.weight.shape[:2]) for layer in decoder.layers[::2]] == [(64, 8), (8, 4), (4, 2), (2, 3)]
    (image,) = decoder(torch.rand(2, 9, generator=rng()))
    assert image.shape == x.shape

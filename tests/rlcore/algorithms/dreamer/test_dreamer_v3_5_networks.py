"""Networks of Dreamer V3.5 against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer.dreamer_v3_5.images import PoolingEncoder, UpsampledConv
from rlcore.algorithms.dreamer.dreamer_v3_5.layer_keys import EncoderConfig, RecurrentConfig
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import BlockLinear, ChannelNorm, RMSNorm, initialise
from rlcore.algorithms.dreamer.dreamer_v3_5.networks import BlockGRU
from rlcore.spec import ArraySpec

EPS = 1e-4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def norm(x: np.ndarray) -> np.ndarray:
    """RMSNorm with scale 1, followed by SiLU."""
    return silu(x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS))


def fill(module: nn.Module) -> nn.Module:
    """Set weights and biases of all layers, except norms, to random numbers in float64."""
    for number, (name, p) in enumerate(module.double().named_parameters()):
        if "norm" not in name:
            p.data = 0.5 * random(*p.shape, seed=number)
    return module


def test_rms_norm_matches_closed_form() -> None:
    x, scale = 0.01 * random(5, 3, 4, 4), random(3, seed=1)
    module = ChannelNorm(3, EPS, "silu").double()
    module.norm.weight.data = scale
    rows = x.numpy().transpose(0, 2, 3, 1)
    expected = silu(rows / np.sqrt((rows**2).mean(-1, keepdims=True) + EPS) * scale.numpy())
    np.testing.assert_allclose(module(x).detach().numpy(), expected.transpose(0, 3, 1, 2), rtol=1e-12)


@torch.no_grad()
def test_block_gru_matches_dense_layers_with_zeros_outside_of_blocks() -> None:
    """Each block-diagonal layer is one matrix of the whole input, in which the three small vectors are repeated."""
    keys = RecurrentConfig(recurrent_state_size=6, hidden_size=2, blocks=3, dynamics_layers=2)
    rng, sizes = torch.Generator().manual_seed(0), (4, 2)
    cell = BlockGRU(sizes, 6, keys, lambda size, *_: RMSNorm(size, EPS, "silu"), rng)
    fill(cell)
    h, stoch, action = random(5, 6), random(5, 4, seed=1), 2 * random(5, 2, seed=2)

    def dense(layer: BlockLinear, x: np.ndarray) -> np.ndarray:
        return x @ torch.block_diag(*layer.weight).numpy() + layer.bias.numpy()

    small = []
    clipped = action / action.abs().clamp(min=1)
    for layers, x in ((cell.of_deter, h), (cell.of_stoch, stoch), (cell.of_action, clipped)):
        linear: nn.Linear = layers.hidden[0]  # pyright: ignore[reportAssignmentType]
        small.append(norm((x @ linear.weight.T + linear.bias).numpy()))
    shared = np.concatenate(small, -1)
    made = np.concatenate([np.concatenate([part, shared], -1) for part in np.split(h.numpy(), 3, -1)], -1)
    made = norm(dense(cell.hidden[0], made))  # pyright: ignore[reportArgumentType]
    made = norm(dense(cell.hidden[2], made))  # pyright: ignore[reportArgumentType]
    gates = dense(cell.gates, made).reshape(5, 3, 3, 2)  # block, gate, unit
    reset, candidate, update = (gates[:, :, gate].reshape(5, 6) for gate in range(3))
    update, candidate = 1 / (1 + np.exp(1 - update)), np.tanh(candidate / (1 + np.exp(-reset)))
    found = cell(torch.cat([stoch, action], -1), h)
    # `Dense` returns float32.
    np.testing.assert_allclose(found.numpy(), update * candidate + (1 - update) * h.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_upsampled_convolution_matches_convolution_of_enlarged_image(size: int) -> None:
    module, x = UpsampledConv(3, 2, size), random(4, 3, 5, 6)
    fill(module)
    enlarged = F.interpolate(x, scale_factor=2.0, mode="nearest")
    expected = F.conv2d(enlarged, module.weight, module.bias, padding=size // 2)
    torch.testing.assert_close(module(x), expected)
    parameters = [module.weight, module.bias]
    found, other = (torch.autograd.grad(y.square().sum(), parameters) for y in (module(x), expected))
    torch.testing.assert_close(found, other)


def test_pooling_encoder_halves_images_in_each_stage() -> None:
    keys = EncoderConfig(cnn_channels_multiplier=2, cnn_stages=(1, 3), cnn_kernel_size=1)
    encoder = PoolingEncoder(
        [ArraySpec((3, 8, 8), "uint8"), ArraySpec((8, 8, 1), "uint8")], keys, lambda _: nn.Identity()
    )
    fill(encoder)
    images = random(2, 3, 8, 8).float(), random(2, 1, 8, 8, seed=1).float()
    x = torch.cat(images, 1).double()
    for stage in (0, 3):
        conv: nn.Conv2d = encoder.layers[stage]  # pyright: ignore[reportAssignmentType]
        x = torch.einsum("nchw,oc->nohw", x, conv.weight[..., 0, 0]) + conv.bias[:, None, None]  # pyright: ignore[reportOptionalSubscript]
        count, channels, height, width = x.shape
        x = x.view(count, channels, height // 2, 2, width // 2, 2).amax((3, 5))
    assert encoder.output_size == 6 * 2 * 2
    torch.testing.assert_close(encoder([image.double() for image in images]), x.flatten(1))


def test_initialise_scales_weights_by_the_number_of_inputs() -> None:
    layers = nn.ModuleList([nn.Linear(400, 300), nn.Conv2d(30, 40, 5), BlockLinear(400, 320, 4), nn.Linear(100, 300)])
    initialise(layers, torch.Generator().manual_seed(0), {layers[0]: 0.1}, {layers[3]: 900})
    for layer, expected in zip(layers, (0.1 / 20, 1 / math.sqrt(750), 1 / 20, 1 / 30), strict=True):
        weight: Tensor = layer.weight  # pyright: ignore[reportAssignmentType]
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.02)
        assert float(weight.detach().abs().max()) <= 2 * expected / 0.8796 + 1e-6
        assert not layer.bias.any()  # pyright: ignore[reportCallIssue]

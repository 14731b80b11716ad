from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlcore.nn.mlp import MLP, linear
from rlcore.nn.network_keys import ACTIVATIONS, MLPConfig


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mlp_layers_are_linear_norm_activation_output() -> None:
    mlp = MLP(3, MLPConfig(dense_units=5, mlp_layers=2, dense_act="relu", layer_norm=True), rng(), outputs=2)
    kinds = [type(layer) for layer in mlp.layers]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    assert mlp(torch.zeros(7, 3)).shape == (7, 2) and mlp.output_size == 2


def test_mlp_without_layers_is_identity() -> None:
    mlp = MLP(3, MLPConfig(mlp_layers=0), rng())
    x = torch.randn(4, 3, generator=rng())
    assert torch.equal(mlp(x), x) and mlp.output_size == 3


def test_mlp_keeps_leading_dimensions() -> None:
    assert MLP(3, MLPConfig(dense_units=5, mlp_layers=1), rng())(torch.zeros(2, 4, 3)).shape == (2, 4, 5)


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 8), (8, 20), (20, 8)])
def test_linear_with_gain_is_orthogonal_without_bias(inputs: int, outputs: int) -> None:
    layer = linear(inputs, outputs, rng(), gain=1.7)
    # All singular values of a (semi-)orthogonal matrix are its gain.
    singular = torch.linalg.svdvals(layer.weight.detach())
    torch.testing.assert_close(singular, torch.full_like(singular, 1.7))
    assert not layer.bias.any()


def test_linear_default_weights_have_range_of_torch() -> None:
    layer = linear(100, 400, rng())
    bound = 1 / math.sqrt(100)
    assert layer.weight.abs().max() <= bound and layer.bias.abs().max() <= bound
    # A uniform on ±b has std b/√3; 40000 draws estimate it to one percent.
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    torch.manual_seed(0)
    assert layer.weight.std().item() == pytest.approx(nn.Linear(100, 400).weight.std().item(), rel=0.02)


def test_mlp_gains_apply_only_with_ortho_init() -> None:
    mlp = MLP(6, MLPConfig(dense_units=6, mlp_layers=1, ortho_init=True), rng(), outputs=1, output_gain=0.5)
    assert torch.linalg.svdvals(mlp.layers[0].weight.detach())[0].item() == pytest.approx(math.sqrt(2), rel=1e-5)
    assert mlp.layers[2].weight.detach().norm().item() == pytest.approx(0.5, rel=1e-5)
    assert MLP(6, MLPConfig(dense_units=6, mlp_layers=1), rng()).layers[0].bias.any()


def test_mlp_weights_depend_only_on_generator() -> None:
    weights = []
    for global_seed, seed in ((0, 3), (1, 3), (0, 4)):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        for ortho in (False, True):
            mlp = MLP(
                4, MLPConfig(dense_units=4, mlp_layers=1, ortho_init=ortho, layer_norm=True), rng(seed), outputs=2
            )
            weights.append(torch.cat([p.detach().flatten() for p in mlp.parameters()]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[2]) and torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[4])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_activation_is_finite_and_trainable(name: str) -> None:
    mlp = MLP(3, MLPConfig(dense_units=32, mlp_layers=2, dense_act=name), rng(), outputs=1)
    out = mlp(torch.randn(5, 3, generator=rng(1)))
    out.sum().backward()
    assert torch.isfinite(out).all() and mlp.layers[0].weight.grad.any()

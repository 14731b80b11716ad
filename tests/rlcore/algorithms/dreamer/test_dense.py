"""Layers of world models, compared with their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from rlcore.algorithms.dreamer.dense import CUT_AT_TWO, Dense, LayerNormGRU, PlainGRU, glorot_linear
from rlcore.algorithms.dreamer.dreamer_v3.layer_keys import DenseConfig, NormConfig
from rlcore.algorithms.dreamer.world_keys import DenseKeys, InitConfig

NONE = NormConfig("identity")


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("eps", [1e-3, None])
def test_layer_norm_gru_matches_formula(eps: float | None) -> None:
    cell = LayerNormGRU(3, 5, InitConfig(eps, False), rng()).double()
    x, h = (torch.randn(4, n, generator=rng(), dtype=torch.float64) for n in (3, 5))
    gates = torch.cat([h, x], 1) @ cell.linear.weight.T
    if eps is not None:
        mean = gates.mean(1, keepdim=True)
        gates = (gates - mean) / ((gates - mean).square().mean(1, keepdim=True) + eps).sqrt()
    r, c, u = gates[:, :5], gates[:, 5:10], gates[:, 10:]
    u = 1 / (1 + torch.exp(1 - u))
    expected = u * torch.tanh(c / (1 + torch.exp(-r))) + (1 - u) * h
    torch.testing.assert_close(cell(x, h), expected)


def test_dense_has_no_bias_before_norm() -> None:
    normed, plain = (Dense(4, DenseConfig(8, 2, "silu", norm).layers, rng(), 3) for norm in (NormConfig(), NONE))
    # 4·8 + 8·8 weights, 2·2·8 of the norms, 8·3 + 3 of the output
    assert sum(p.numel() for p in normed.parameters()) == 32 + 64 + 32 + 27
    assert sum(p.numel() for p in plain.parameters()) == 32 + 8 + 64 + 8 + 27
    x = torch.randn(6, 4, generator=rng())
    output = x
    for i in (0, 2):
        output = F.silu(F.layer_norm(output @ normed.hidden[i].weight.T, (8,), eps=1e-3))  # pyright: ignore
    assert normed.output is not None
    torch.testing.assert_close(normed(x), output @ normed.output.weight.T)


def test_glorot_linear_initial_weights_have_expected_variance() -> None:
    hidden, output = glorot_linear(300, 500, rng()), glorot_linear(300, 500, rng(), 2.0)
    # Variance 1 / 400 of a normal truncated at two standard deviations, and 2 / 400 of a uniform distribution.
    assert hidden.weight.std().item() == pytest.approx(math.sqrt(1 / 400), rel=1e-2)
    assert hidden.weight.abs().max().item() <= 2 * math.sqrt(1 / 400) / CUT_AT_TWO
    assert output.weight.std().item() == pytest.approx(math.sqrt(2 / 400), rel=1e-2)
    assert output.weight.abs().max().item() <= math.sqrt(6 / 400)
    assert not glorot_linear(3, 5, rng(), 0.0).weight.any() and not hidden.bias.any()


def test_plain_gru_matches_torch_gru_cell() -> None:
    ours, theirs = PlainGRU(3, 5, rng()).double(), torch.nn.GRUCell(3, 5).double()
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_(generator=rng())
        for own, name in ((ours.of_input, "ih"), (ours.of_state, "hh")):
            getattr(theirs, f"weight_{name}").copy_(own.weight)
            getattr(theirs, f"bias_{name}").copy_(own.bias)
    x, h = (torch.randn(4, n, generator=rng(), dtype=torch.float64) for n in (3, 5))
    torch.testing.assert_close(ours(x, h), theirs(x, h))
    initial = PlainGRU(3, 5, rng()).of_state.weight.unflatten(0, (3, 5))
    torch.testing.assert_close(initial.flatten(0, 1).T @ initial.flatten(0, 1), torch.eye(5))


def test_dense_keys_layers_are_glorot_uniform_with_bias() -> None:
    plain = Dense(300, DenseKeys(500, 1).layers, rng(), 2)
    layer = plain.hidden[0]
    assert isinstance(layer, torch.nn.Linear) and layer.bias is not None
    limit = math.sqrt(6 / 800)  # Glorot and Bengio 2010, eq. 16
    assert 0.999 * limit < layer.weight.abs().max().item() <= limit

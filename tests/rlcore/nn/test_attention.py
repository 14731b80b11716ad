"""Attention, positions and activations, compared with torch.nn; masked operations, compared with loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlcore.errors import UserError
from rlcore.nn.attention import Attention, PositionalEmbedding, activation
from rlcore.nn.masked import masked_log_softmax, masked_max, masked_mean, masked_sample


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run."""
    torch.manual_seed(0)


def as_torch(own: Attention, size: int, context: int) -> nn.MultiheadAttention:
    """The attention of torch.nn with the same weights."""
    other = nn.MultiheadAttention(size, own.heads, kdim=context, vdim=context, batch_first=True)
    layers = (own.query, own.key, own.value)
    with torch.no_grad():
        other.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        if context == size:
            other.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        else:
            for place, layer in zip(("q", "k", "v"), layers, strict=True):
                getattr(other, f"{place}_proj_weight").copy_(layer.weight)
        other.out_proj.load_state_dict(own.output.state_dict())
    return other


@pytest.mark.parametrize("context", [8, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_torch_attention(context: int, masked: bool) -> None:
    own = Attention(8, 2, context)
    x, seen = torch.randn(3, 4, 8), torch.randn(3, 6, context)
    mask = torch.rand(3, 6) < 0.6 if masked else None
    if mask is not None:
        mask[:, 2] = True
    expected, _ = as_torch(own, 8, context)(x, seen, seen, key_padding_mask=None if mask is None else ~mask)
    torch.testing.assert_close(own(x, seen, mask), expected)


def test_self_attention_with_causal_mask_ignores_later_entries() -> None:
    own, x = Attention(8, 2), torch.randn(3, 4, 8)
    causal = torch.ones(4, 4).tril().expand(3, 4, 4)
    changed = torch.cat([x[:, :3], torch.randn(3, 1, 8)], 1)
    torch.testing.assert_close(own(x, mask=causal)[:, :3], own(changed, mask=causal)[:, :3])
    assert not torch.allclose(own(x)[:, :3], own(changed)[:, :3])


def test_attention_without_allowed_entry_returns_bias() -> None:
    own, x = Attention(8, 2), torch.randn(2, 3, 8, requires_grad=True)
    mask = torch.tensor([[False] * 3, [True] * 3])
    found = own(x, mask=mask)
    torch.testing.assert_close(found[0], own.output.bias.expand(3, 8))
    found.sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_attention_refuses_indivisible_size() -> None:
    with pytest.raises(UserError, match=r"size=8: must be divisible by the number of heads \(3\)"):
        Attention(8, 3)


def test_positional_embedding_adds_sine_and_cosine() -> None:
    own = PositionalEmbedding(4, 10)
    found = own(torch.zeros(1, 3, 4))[0]
    # t = 2: sin 2, cos 2, sin(2 / 100), cos(2 / 100)
    torch.testing.assert_close(found[2], torch.tensor([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]))
    newest = PositionalEmbedding(4, 10, from_newest=True)(torch.zeros(1, 3, 4))[0]
    torch.testing.assert_close(newest, found.flip(0))


def test_activation_creates_module_by_name() -> None:
    assert isinstance(activation("silu"), nn.SiLU)
    assert activation("squared_relu")(torch.tensor([-1.0, 3.0])).tolist() == [0, 9]
    with pytest.raises(UserError, match=r"activation 'rleu': must be one of tanh, relu.*relu"):
        activation("rleu")


def test_masked_functions_equal_functions_of_allowed_entries() -> None:
    x, mask = torch.randn(20, 6), torch.rand(20, 6) < 0.5
    mask[0], mask[1] = False, True
    mean, most, logprob = masked_mean(x, mask, 1), masked_max(x, mask, 1), masked_log_softmax(x, mask)
    for row in range(1, 20):
        if not (chosen := x[row][mask[row]]).numel():
            continue
        torch.testing.assert_close(mean[row], chosen.mean())
        torch.testing.assert_close(most[row], chosen.max())
        torch.testing.assert_close(logprob[row][mask[row]], chosen.log_softmax(0))
        p = logprob[row].exp()
        assert (p[~mask[row]] == 0).all() and bool((p * logprob[row]).sum().isfinite())
    assert mean[0] == 0 and most[0] == 0
    torch.testing.assert_close(logprob[0], x[0].log_softmax(0))


def test_masked_sample_draws_allowed_entries_by_probability() -> None:
    logits, mask = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([1, 0, 1, 1])
    generator = torch.Generator().manual_seed(0)
    noise = torch.empty(20_000, 4).exponential_(generator=generator)
    noise[0] = 0  # a forbidden entry must not be chosen even with this noise
    found = masked_sample(logits.expand(20_000, 4), mask.expand(20_000, 4), noise)
    share = torch.bincount(found, minlength=4) / 20_000
    expected = torch.tensor([1.0, 0.0, math.exp(2), math.exp(3)])
    assert (share - expected / expected.sum()).abs().max() < 0.015
    assert share[1] == 0

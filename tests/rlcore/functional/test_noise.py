"""Streams of noise: their law, their state, and that streams share nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from rlcore.functional.noise import MANY, Noise
from rlcore.store.checkpoint import nested_state


@pytest.mark.parametrize("count", [2000, MANY])  # NumPy's numbers, and torch's
@pytest.mark.parametrize(("kind", "law"), [("normal", "norm"), ("exponential", "expon"), ("uniform", "uniform")])
def test_numbers_have_their_law(kind: str, law: str, count: int) -> None:
    drawn = getattr(Noise(3, "policy"), kind)(count // 2, 2)
    assert (drawn.shape, drawn.dtype) == ((count // 2, 2), torch.float32)
    assert stats.kstest(drawn.flatten().numpy(), law).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.99, 0.5, 0.003])
@pytest.mark.parametrize("shape", [(3, 333, 7), (5,)])  # neither is whole words of 64 bits
def test_ones_come_with_their_chance_and_zeros_else(p: float, shape: tuple[int, ...]) -> None:
    drawn = Noise(3, "loss").bernoulli(p, *shape)
    assert (drawn.shape, drawn.dtype) == (shape, torch.uint8) and set(drawn.unique().tolist()) <= {0, 1}
    assert stats.binomtest(int(drawn.sum()), drawn.numel(), p).pvalue > 1e-3


def test_draws_in_a_row_are_those_of_single_calls() -> None:
    for kind, shape in (("bernoulli", (0.5, 3, 5)), ("uniform", (3, 5)), ("normal", (MANY,))):
        one, other = Noise(3, "loss"), Noise(3, "loss")
        for drawn in one.in_a_row(kind, 3, shape):
            assert torch.equal(drawn, getattr(other, kind)(*shape))


def test_a_stream_goes_on_from_its_state() -> None:
    first, second = Noise(0, "policy"), Noise(9, "replay")
    first.normal(3)
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    for shape in ((2,), (MANY,), (3, 1)):
        assert torch.equal(first.normal(*shape), second.normal(*shape))
    assert torch.equal(first.exponential(4), second.exponential(4))


def test_seeds_purposes_and_ranks_share_nothing() -> None:
    streams = [Noise(0, "policy", 0), Noise(1, "policy", 0), Noise(0, "policy", 1), Noise(0, "policy_eval", 0)]
    for count in (500, MANY):
        drawn = np.stack([noise.normal(count).numpy() for noise in streams])
        between = np.corrcoef(drawn) - np.eye(len(streams))
        assert np.abs(between).max() < 4.5 / count**0.5

"""Streams of noise: their law, their state, and that streams share nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from rlcore.functional.noise import MANY, RARE, Noise
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


@pytest.mark.parametrize("p", [0.99, 1 - RARE, 0.9])  # zeros by their distances, and one by one
def test_one_number_says_nothing_of_the_next(p: float) -> None:
    noise = Noise(3, "loss")
    zeros = np.stack([1 - noise.bernoulli(p, 8, 8).flatten().numpy() for _ in range(4096)])
    assert stats.chisquare(zeros.sum(0)).pvalue > 1e-3  # no place is favoured, a draw's first and last neither
    distances = np.diff(np.flatnonzero(zeros))
    edges = stats.geom.ppf(np.linspace(0, 1, 11), 1 - p)
    found, _ = np.histogram(distances, [*(edges[:-1] + 0.5), np.inf])
    chances = np.diff(stats.geom.cdf([*edges[:-1], np.inf], 1 - p))
    assert stats.chisquare(found, chances * found.sum()).pvalue > 1e-3


def test_distances_go_on_where_too_few_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(3, "loss")
    monkeypatch.setattr(noise, "host", SimpleNamespace(geometric=lambda p, count: np.full(3, 7)))
    assert np.flatnonzero(noise.bernoulli(0.99, 10, 10).flatten() == 0).tolist() == list(range(6, 100, 7))


def test_of_no_numbers_none_are_drawn() -> None:
    assert Noise(3, "loss").bernoulli(0.99, 0, 4).shape == (0, 4)


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

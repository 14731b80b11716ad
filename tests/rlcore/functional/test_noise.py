"""Noise streams: distributions, state and independence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from rlcore.functional.noise import MANY, RARE, Noise
from rlcore.store.checkpoint import nested_state


@pytest.mark.parametrize("count", [2000, MANY])  # numbers by NumPy, and by torch
@pytest.mark.parametrize(("kind", "law"), [("normal", "norm"), ("exponential", "expon"), ("uniform", "uniform")])
def test_noise_has_its_distribution(kind: str, law: str, count: int) -> None:
    numbers = getattr(Noise(3, "policy"), kind)(count // 2, 2)
    assert (numbers.shape, numbers.dtype) == ((count // 2, 2), torch.float32)
    assert stats.kstest(numbers.flatten().numpy(), law).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.99, 0.5, 0.003])
@pytest.mark.parametrize("shape", [(3, 333, 7), (5,)])  # neither is a multiple of 64
def test_bernoulli_has_given_probability(p: float, shape: tuple[int, ...]) -> None:
    numbers = Noise(3, "loss").bernoulli(p, *shape)
    assert (numbers.shape, numbers.dtype) == (shape, torch.uint8) and set(numbers.unique().tolist()) <= {0, 1}
    assert stats.binomtest(int(numbers.sum()), numbers.numel(), p).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.99, 1 - RARE, 0.9])  # zeros numbers by their distances, and one by one
def test_bernoulli_draws_are_independent(p: float) -> None:
    noise = Noise(3, "loss")
    zeros = np.stack([1 - noise.bernoulli(p, 8, 8).flatten().numpy() for _ in range(4096)])
    assert stats.chisquare(zeros.sum(0)).pvalue > 1e-3  # all positions of a draw are equally likely
    distances = np.diff(np.flatnonzero(zeros))
    edges = stats.geom.ppf(np.linspace(0, 1, 11), 1 - p)
    found, _ = np.histogram(distances, [*(edges[:-1] + 0.5), np.inf])
    chances = np.diff(stats.geom.cdf([*edges[:-1], np.inf], 1 - p))
    assert stats.chisquare(found, chances * found.sum()).pvalue > 1e-3


def test_bernoulli_continues_if_too_few_distances_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(3, "loss")
    monkeypatch.setattr(noise, "host", SimpleNamespace(geometric=lambda p, count: np.full(3, 7)))
    assert np.flatnonzero(noise.bernoulli(0.99, 10, 10).flatten() == 0).tolist() == list(range(6, 100, 7))


def test_bernoulli_of_empty_shape_is_empty() -> None:
    assert Noise(3, "loss").bernoulli(0.99, 0, 4).shape == (0, 4)


def test_in_a_row_equals_single_draws() -> None:
    for kind, shape in (("bernoulli", (0.5, 3, 5)), ("uniform", (3, 5)), ("normal", (MANY,))):
        one, other = Noise(3, "loss"), Noise(3, "loss")
        for numbers in one.in_a_row(kind, 3, shape):
            assert torch.equal(numbers, getattr(other, kind)(*shape))


def test_noise_continues_from_loaded_state() -> None:
    first, second = Noise(0, "policy"), Noise(9, "replay")
    first.normal(3)
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    for shape in ((2,), (MANY,), (3, 1)):
        assert torch.equal(first.normal(*shape), second.normal(*shape))
    assert torch.equal(first.exponential(4), second.exponential(4))


def test_noise_streams_are_uncorrelated() -> None:
    streams = [Noise(0, "policy", 0), Noise(1, "policy", 0), Noise(0, "policy", 1), Noise(0, "policy_eval", 0)]
    for count in (500, MANY):
        numbers = np.stack([noise.normal(count).numpy() for noise in streams])
        between = np.corrcoef(numbers) - np.eye(len(streams))
        assert np.abs(between).max() < 4.5 / count**0.5

"""Latents compared with torch.distributions, closed forms and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from rlcore.algorithms.dreamer import latents
from rlcore.types import SingleProcess


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def finite_differences(function: Callable[[Tensor], Tensor], x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the gradient by central differences."""
    found = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros_like(x).flatten()
        step[i] = eps
        step = step.view_as(x)
        found.view(-1)[i] = (function(x + step) - function(x - step)) / (2 * eps)
    return found


def test_unimix_mixes_probabilities_with_uniform() -> None:
    logits = torch.tensor([0.0, math.log(3.0), -1e9], dtype=torch.float64)
    # 0.9 (1/4, 3/4, 0) + 0.1 / 3
    expected = torch.tensor([0.225, 0.675, 0.0], dtype=torch.float64) + 0.1 / 3
    torch.testing.assert_close(latents.unimix(logits, 0.1).exp(), expected)
    torch.testing.assert_close(latents.unimix(random(4, 5), 0.0), random(4, 5).log_softmax(-1))


def test_sample_one_hot_is_inverse_of_cdf() -> None:
    logprob = torch.tensor([0.2, 0.5, 0.3]).log()
    uniform = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 0.9999])
    found = latents.sample_one_hot(logprob.expand(6, 3), uniform)
    assert found.argmax(-1).tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(found.sum(-1), torch.ones(6))
    grid = (torch.arange(1000) + 0.5) / 1000
    shares = latents.sample_one_hot(logprob.expand(1000, 3), grid).mean(0)
    torch.testing.assert_close(shares, logprob.exp(), rtol=0, atol=1e-6)


def test_sample_one_hot_has_straight_through_gradient() -> None:
    logits, weight = random(3).requires_grad_(), random(3, seed=1)
    found = latents.sample_one_hot(logits.log_softmax(-1), torch.tensor(0.5, dtype=torch.float64))
    (gradient,) = torch.autograd.grad((found * weight).sum(), logits)
    torch.testing.assert_close(gradient, finite_differences(lambda x: (x.softmax(-1) * weight).sum(), logits.detach()))


def test_kl_and_entropy_match_torch() -> None:
    p, q = random(6, 3, 4).log_softmax(-1), random(6, 3, 4, seed=1).log_softmax(-1)
    theirs = [Independent(Categorical(logits=x), 1) for x in (p, q)]
    torch.testing.assert_close(latents.categorical_kl(p, q), kl_divergence(*theirs))
    torch.testing.assert_close(latents.categorical_entropy(p), theirs[0].entropy())
    means, stds = random(6, 3), random(6, 3, seed=2).exp()
    normals = [Independent(Normal(m, s), 1) for m, s in ((means, stds), (means.flip(0), stds.flip(1)))]
    found = latents.normal_kl((means, stds), (means.flip(0), stds.flip(1)))
    torch.testing.assert_close(found, kl_divergence(*normals))
    torch.testing.assert_close(latents.normal_entropy(stds), normals[0].entropy())


@pytest.mark.parametrize("side", ["p", "q"])
def test_categorical_kl_gradient_matches_finite_differences(side: str) -> None:
    p, q = random(2, 3), random(2, 3, seed=1)

    def kl(x: Tensor) -> Tensor:
        pair = (x, q) if side == "p" else (p, x)
        return latents.categorical_kl(*(latents.unimix(part, 0.01) for part in pair))

    x = (p if side == "p" else q).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(kl(x), x)
    torch.testing.assert_close(gradient, finite_differences(kl, x.detach()), rtol=1e-6, atol=1e-8)


def test_free_nats_clip_sum_and_stop_gradient() -> None:
    kl = torch.tensor([0.4, 2.5], requires_grad=True)
    found = latents.free_nats(kl, 1.0)
    assert found.tolist() == [1.0, 2.5]
    assert torch.autograd.grad(found.sum(), kl)[0].tolist() == [0.0, 1.0]


class Pair(SingleProcess):
    """One of two ranks; the other rank has the given mean."""

    size = 2

    def __init__(self, theirs: float) -> None:
        self.theirs = theirs

    def sum(self, value: Tensor) -> Tensor:
        return value + self.theirs


@pytest.mark.parametrize(("ranks", "clipped"), [(SingleProcess(), True), (Pair(1.5), True), (Pair(4.5), False)])
def test_mean_free_nats_uses_mean_over_ranks(ranks: SingleProcess, clipped: bool) -> None:
    kl = torch.tensor([0.5, 3.5], requires_grad=True)  # mean 2; with the other rank's 1.5 or 4.5: 1.75 or 3.25
    found = latents.mean_free_nats(kl, 2.5, ranks).mean()
    found.backward()
    assert kl.grad is not None
    assert found.item() == (2.5 if clipped else 2.0)
    assert kl.grad.tolist() == ([0.0, 0.0] if clipped else [0.5, 0.5])

"""Dreamers' functions against the equations of their papers, evaluated in NumPy one number after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlcore.algorithms.dreamer_v2 import learner as v2
from rlcore.algorithms.dreamer_v3 import learner as v3
from rlcore.functional import latents
from rlcore.functional.two_hot import TwoHot
from rlcore.nn.return_scale import ReturnScale
from rlcore.nn.world_keys import MomentsConfig, PercentileConfig
from rlcore.types import Alone


def softmax(x: np.ndarray) -> np.ndarray:
    grown = np.exp(x - x.max())
    return grown / grown.sum()


def test_two_hot_cross_entropy_in_symlog_space() -> None:
    """arXiv:2301.04104v1, eq. 8-9: twohot(symlog(y))ᵀ log softmax(f), over 255 bins of -20 to 20."""
    rng = np.random.default_rng(0)
    bins = [-20 + 40 * k / 254 for k in range(255)]
    logits, numbers = rng.normal(size=(40, 255)), rng.normal(size=40) * 10.0 ** rng.integers(-3, 7, 40)
    expected = []
    for row, y in zip(logits, numbers, strict=True):
        x, target = math.copysign(math.log(1 + abs(y)), y), np.zeros(255)
        k = sum(b <= x for b in bins) - 1
        target[k] = abs(bins[k + 1] - x) / abs(bins[k + 1] - bins[k])
        target[k + 1] = abs(bins[k] - x) / abs(bins[k + 1] - bins[k])
        expected.append(-target @ np.log(softmax(row)))
    found = TwoHot(255, "symlog").loss(torch.from_numpy(logits), torch.from_numpy(numbers))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """Of S categoricals [S, K] of probabilities."""
    return sum(a * math.log(a / b) for row, other in zip(p, q, strict=True) for a, b in zip(row, other, strict=True))


def mixed(logits: np.ndarray) -> np.ndarray:
    """A percent of a uniform distribution and the rest of the network's (arXiv:2301.04104v1, "Unimix categoricals")."""
    return np.stack([0.99 * softmax(row) + 0.01 / len(row) for row in logits])


def test_divergences_of_both_sides_of_mixed_distributions() -> None:
    """arXiv:2301.04104v1, eq. 5: β_dyn max(1, KL[sg(q) ‖ p]) + β_rep max(1, KL[q ‖ sg(p)]), .5 and .1."""
    rng = np.random.default_rng(0)
    posterior, prior = rng.normal(size=(2, 6, 3, 4)) * np.linspace(0.2, 1.5, 6)[:, None, None]
    made = [latents.unimix(torch.from_numpy(x).requires_grad_(), 0.01) for x in (posterior, prior)]
    each = [kl(mixed(q), mixed(p)) for q, p in zip(posterior, prior, strict=True)]
    assert min(each) < 1 < max(each)
    found = v3.kl_loss(*made, 0.5, 0.1, 1.0).detach()
    np.testing.assert_allclose(found.numpy(), [0.5 * max(1, x) + 0.1 * max(1, x) for x in each], rtol=1e-10)
    # What each side learns: the gradient of the divergence, times its weight, and none below a nat.
    for side, weight in ((0, 0.1), (1, 0.5)):
        (gradient,) = torch.autograd.grad(v3.kl_loss(*made, 0.5, 0.1, 1.0).sum(), made[side], retain_graph=True)
        (whole,) = torch.autograd.grad(latents.categorical_kl(*made).sum(), made[side], retain_graph=True)
        counts = torch.tensor([x > 1 for x in each], dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(gradient, weight * counts * whole)


@pytest.mark.parametrize("alpha", [0.8, 0.5])
def test_balanced_divergence(alpha: float) -> None:
    """arXiv:2010.02193, algorithm 2: α KL[sg(q) ‖ p] + (1 - α) KL[q ‖ sg(p)]."""
    rng = np.random.default_rng(0)
    posterior, prior = rng.normal(size=(2, 5, 3, 4))
    made = [torch.from_numpy(x).log_softmax(-1).requires_grad_() for x in (posterior, prior)]
    each = [
        kl(np.stack([*map(softmax, q)]), np.stack([*map(softmax, p)])) for q, p in zip(posterior, prior, strict=True)
    ]
    found = v2.kl_loss(*made, alpha, 0.0, Alone())
    np.testing.assert_allclose(found.detach().numpy(), each, rtol=1e-10)
    for side, weight in ((0, 1 - alpha), (1, alpha)):
        (gradient,) = torch.autograd.grad(found.sum(), made[side], retain_graph=True)
        (whole,) = torch.autograd.grad(latents.categorical_kl(*made).sum(), made[side], retain_graph=True)
        torch.testing.assert_close(gradient, weight * whole)


def test_the_scale_of_returns() -> None:
    """arXiv:2301.04104v1, eq. 12: S = Per(R, 95) - Per(R, 5), a moving average of decay .99, not below 1."""
    rng = np.random.default_rng(0)
    scale, low, high = ReturnScale(MomentsConfig(0.99, 1.0, PercentileConfig(0.05, 0.95))), 0.0, 0.0
    for n in range(30):
        returns = rng.normal(n, 40.0, (15, 8)).astype(np.float32)
        low = 0.99 * low + 0.01 * float(np.percentile(returns, 5))
        high = 0.99 * high + 0.01 * float(np.percentile(returns, 95))
        found = scale(torch.from_numpy(returns), Alone()).item()
        assert found == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert found > 10

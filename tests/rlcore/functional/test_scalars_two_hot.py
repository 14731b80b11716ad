"""Two-hot regression of single numbers, compared with its definition."""

from __future__ import annotations

import math

import pytest
import torch

from rlcore.functional.scalars import TwoHot, symexp, symlog


def test_symexp_inverts_symlog() -> None:
    x = torch.tensor([-1e6, -1.0, 0.0, 1e-6, math.e - 1, 1e6], dtype=torch.float64)
    torch.testing.assert_close(symlog(x)[[1, 2, 4]], torch.tensor([-math.log(2), 0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("spacing", "x"), [("symlog", symexp(torch.tensor(0.25)).item()), ("symexp", 10.0)])
def test_two_hot_splits_number_between_neighbors(spacing: str, x: float) -> None:
    """K = 41: bins are -20, -19, ..., 20, or symexp of these.

    symlog: 0.25 lies at a quarter between 0 and 1. symexp: 10 between e² - 1 = 6.389 and e³ - 1 = 19.086, at 0.28440.
    """
    logits = torch.linspace(-1, 1, 41).square()
    logprob = logits.log_softmax(-1)
    low, share = (20, 0.25) if spacing == "symlog" else (22, (10 - 6.38905610) / (19.08553692 - 6.38905610))
    expected = -(1 - share) * logprob[low] - share * logprob[low + 1]
    torch.testing.assert_close(TwoHot(41, spacing).loss(logits, torch.tensor(x)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spacing", ["symlog", "symexp"])
@pytest.mark.parametrize("bins", [255, 128])
def test_two_hot_target_distribution_has_number_as_mean(spacing: str, bins: int) -> None:
    two_hot, x = TwoHot(bins, spacing), torch.tensor([-1e4, -30.0, -0.3, 0.0, 0.02, 7.0, 1e4], dtype=torch.float64)
    logits = torch.zeros(len(x), bins, dtype=torch.float64, requires_grad=True)
    # The gradient of the cross-entropy is p - q, which is 1/K - q for equal logits.
    (gradient,) = torch.autograd.grad(two_hot.loss(logits, x).sum(), logits)
    q = 1 / bins - gradient
    torch.testing.assert_close(q.sum(-1), torch.ones(len(x), dtype=torch.float64))
    assert ((q > 1e-12).sum(-1) <= 2).all()
    torch.testing.assert_close(two_hot.mean(q.clamp(min=1e-30).log()), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spacing", ["symlog", "symexp"])
def test_two_hot_clips_to_outermost_bins(spacing: str) -> None:
    logits, far = torch.randn(5, generator=torch.Generator().manual_seed(0)), symexp(torch.tensor(25.0))
    two_hot = TwoHot(5, spacing)
    for x, place in ((far, 4), (-far, 0)):
        torch.testing.assert_close(two_hot.loss(logits, x), -logits.log_softmax(-1)[place])


@pytest.mark.parametrize("spacing", ["symlog", "symexp"])
@pytest.mark.parametrize("bins", [255, 127, 64])
def test_two_hot_mean_of_equal_logits_is_zero(spacing: str, bins: int) -> None:
    """Summed in order, the huge bins of symexp would leave -0.35 in float32."""
    assert torch.equal(TwoHot(bins, spacing).mean(torch.full((3, bins), 0.7)), torch.zeros(3))

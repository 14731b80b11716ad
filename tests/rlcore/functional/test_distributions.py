from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import distributions as reference
from torch.distributions import TanhTransform

from rlcore.functional.distributions import (
    LOG_STD_MAX,
    Categoricals,
    Normal,
    SquashedNormal,
    TanhNormal,
    TruncatedNormal,
    log_tanh_slope,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal_pair() -> tuple[torch.Tensor, torch.Tensor]:
    rng = generator()
    return torch.randn(50, 3, generator=rng).double(), torch.randn(50, 3, generator=rng).double() * 0.7


def test_categoricals_match_torch() -> None:
    logits = torch.randn(20, 9, generator=generator()).double() * 3
    action = torch.stack([torch.randint(0, n, (20,), generator=generator(n)) for n in (2, 3, 4)], -1)
    ours = Categoricals(logits, (2, 3, 4))
    theirs = [reference.Categorical(logits=part) for part in logits.split([2, 3, 4], -1)]
    expected = torch.stack([d.log_prob(action[:, i]) for i, d in enumerate(theirs)]).sum(0)
    torch.testing.assert_close(ours.logprob(action), expected)
    torch.testing.assert_close(ours.entropy(), torch.stack([d.entropy() for d in theirs]).sum(0))
    assert torch.equal(ours.mode(), torch.stack([d.logits.argmax(-1) for d in theirs], -1))


def test_categoricals_sample_with_given_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5]).expand(200_000, 5)
    noise = torch.empty(200_000, 5).exponential_(generator=generator())
    action = Categoricals(logits, (3, 2)).sample(noise)
    assert action.dtype == torch.int64 and action.shape == (200_000, 2)
    for column, part in enumerate(logits[0].split([3, 2])):
        share = torch.bincount(action[:, column]) / 200_000
        # Five standard errors of a share at one half: 5 · 0.5/√200000 = 0.0056
        torch.testing.assert_close(share, part.softmax(0), rtol=0, atol=0.0056)


def test_categoricals_stay_finite_for_extreme_logits() -> None:
    policy = Categoricals(torch.tensor([[1e4, -1e4, 0.0]]), (3,))
    assert torch.isfinite(policy.entropy()).all()
    assert torch.isfinite(policy.logprob(torch.tensor([[1]]))).all()


def test_categoricals_sample_accepts_zero_noise() -> None:
    # -log 0 = ∞ wins; NaN would not.
    action = Categoricals(torch.zeros(1, 3), (3,)).sample(torch.tensor([[1.0, 0.0, 1.0]]))
    assert action.tolist() == [[1]]


def test_normal_matches_torch() -> None:
    mean, log_std = normal_pair()
    ours, theirs = Normal(mean, log_std), reference.Normal(mean, log_std.exp())
    noise = torch.randn(50, 3, generator=generator(1)).double()
    action = ours.sample(noise)
    torch.testing.assert_close(action, mean + log_std.exp() * noise)
    torch.testing.assert_close(ours.logprob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    assert torch.equal(ours.mode(), mean)


def test_normal_limits_log_std() -> None:
    policy = Normal(torch.zeros(1, 2), torch.tensor([[100.0, -100.0]]))
    assert policy.std[0, 0] == pytest.approx(math.exp(LOG_STD_MAX))
    assert torch.isfinite(policy.logprob(torch.zeros(1, 2))).all()


def squashed(mean: torch.Tensor, log_std: torch.Tensor) -> reference.Distribution:
    return reference.TransformedDistribution(
        reference.Normal(mean, log_std.exp()), [reference.transforms.TanhTransform(cache_size=1)]
    )


def test_tanh_normal_matches_torch_where_tanh_saturates() -> None:
    mean, log_std = torch.zeros(31, 1).double(), torch.full((31, 1), 1.0).double()
    u = torch.linspace(-15, 15, 31).double().unsqueeze(-1)
    theirs = squashed(mean, log_std)
    inner = reference.Normal(mean, log_std.exp()).log_prob(
        u
    ) - reference.transforms.TanhTransform().log_abs_det_jacobian(u, u.tanh())
    torch.testing.assert_close(TanhNormal(mean, log_std).logprob(u), inner.sum(-1))
    middle = slice(10, 21)  # |u| <= 5: the inverse of tanh is exact enough there
    expected = theirs.log_prob(u.tanh()).sum(-1)
    torch.testing.assert_close(TanhNormal(mean, log_std).logprob(u)[middle], expected[middle])


def test_tanh_normal_density_integrates_to_one() -> None:
    # Trapezoids over the squashed action; u = atanh(a).
    a = torch.linspace(-1 + 1e-9, 1 - 1e-9, 400_001, dtype=torch.float64)
    count = torch.ones(len(a), 1).double()
    density = TanhNormal(0.4 * count, -0.7 * count).logprob(torch.atanh(a).unsqueeze(-1)).exp()
    assert torch.trapezoid(density, a).item() == pytest.approx(1, abs=1e-5)


def test_tanh_normal_entropy_matches_sampling() -> None:
    mean, log_std = torch.tensor([[0.8, -1.5]]).double(), torch.tensor([[-0.5, 0.3]]).double()
    policy = TanhNormal(mean, log_std)
    noise = torch.randn(400_000, 2, generator=generator()).double()
    logprob = TanhNormal(mean.expand(400_000, 2), log_std.expand(400_000, 2)).logprob(policy.sample(noise))
    # The standard error of the mean of -log π is about 0.003.
    assert policy.entropy().item() == pytest.approx(-logprob.mean().item(), abs=0.015)


def test_log_tanh_slope_is_finite_in_float32() -> None:
    u = torch.tensor([-40.0, -9.0, 0.0, 9.0, 40.0])
    exact = 2 * (math.log(2) - u.double().abs() - torch.log1p(torch.exp(-2 * u.double().abs())))
    torch.testing.assert_close(log_tanh_slope(u).double(), exact, rtol=1e-5, atol=1e-6)
    assert torch.isinf((1 - u.tanh().square()).log()).any()


def test_squashed_normal_matches_torch() -> None:
    mean, log_std = normal_pair()
    theirs = reference.TransformedDistribution(reference.Normal(mean, log_std.exp()), [TanhTransform()])
    ours, noise = SquashedNormal(mean, log_std), torch.randn(50, 3, generator=generator(1)).double()
    action = ours.sample(noise)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(ours.logprob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.mode(), mean.tanh())
    assert ours.logprob(torch.ones(50, 3).double()).isfinite().all()  # actions that tanh rounds to 1


def test_truncated_normal_matches_scipy() -> None:
    mean, log_std = normal_pair()
    mean, std = mean.tanh(), log_std.exp()
    low, high = (((edge - mean) / std).numpy() for edge in (-1, 1))
    theirs = scipy.stats.truncnorm(low, high, mean.numpy(), std.numpy())
    ours, noise = TruncatedNormal(mean, std), torch.rand(50, 3, generator=generator(1)).double()
    action = ours.sample(noise)
    torch.testing.assert_close(action, torch.from_numpy(theirs.ppf(noise.numpy())))
    torch.testing.assert_close(ours.logprob(action), torch.from_numpy(theirs.logpdf(action.numpy()).sum(-1)))
    torch.testing.assert_close(ours.entropy(), torch.from_numpy(theirs.entropy().sum(-1)))
    assert TruncatedNormal(mean, std).sample(torch.zeros(50, 3).double()).isfinite().all()


def test_truncated_normal_sample_has_gradient_of_quantile() -> None:
    given = torch.tensor([[0.3, -0.8]], dtype=torch.float64), torch.tensor([[0.4, 1.5]], dtype=torch.float64)
    noise = torch.tensor([[0.9, 0.2]], dtype=torch.float64)
    inputs = tuple(part.requires_grad_() for part in given)
    assert torch.autograd.gradcheck(lambda mean, std: TruncatedNormal(mean, std).sample(noise), inputs)

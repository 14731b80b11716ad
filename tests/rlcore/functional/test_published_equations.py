"""Functions of the Dreamer algorithms against the equations of their papers, evaluated in NumPy per number."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from rlcore.algorithms.dreamer import latents
from rlcore.algorithms.dreamer.dreamer_v2 import learner as v2
from rlcore.algorithms.dreamer.dreamer_v3 import learner as v3
from rlcore.algorithms.dreamer.imagination import imagine
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_keys import MomentsConfig, PercentileConfig
from rlcore.functional.noise import Drawn
from rlcore.functional.scalars import TwoHot
from rlcore.types import SingleProcess
from tests.golden.dreamers import given_step
from tests.golden.test_dreamer_v3_golden import case_of


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max())
    return exponentials / exponentials.sum()


def grid(count: int) -> list[float]:
    """Return bins from -20 to 20."""
    return [-20 + 40 * k / (count - 1) for k in range(count)]


def cross_entropy(logits: np.ndarray, y: float) -> float:
    """-twohot(symlog(y))ᵀ log softmax(logits)."""
    x, target, bins = math.copysign(math.log(1 + abs(y)), y), np.zeros(len(logits)), grid(len(logits))
    k = sum(b <= x for b in bins) - 1
    target[k] = abs(bins[k + 1] - x) / abs(bins[k + 1] - bins[k])
    target[k + 1] = abs(bins[k] - x) / abs(bins[k + 1] - bins[k])
    return float(-target @ np.log(softmax(logits)))


def expectation(logits: np.ndarray) -> float:
    """Return the number that logits represent, symexp(softmax(logits)ᵀ b)."""
    x = float(softmax(logits) @ np.array(grid(len(logits))))
    return math.copysign(math.exp(abs(x)) - 1, x)


def test_two_hot_loss_matches_published_equation() -> None:
    """arXiv:2301.04104v1, eq. 8-9: twohot(symlog(y))ᵀ log softmax(f), over 255 bins of -20 to 20."""
    rng = np.random.default_rng(0)
    logits, numbers = rng.normal(size=(40, 255)), rng.normal(size=40) * 10.0 ** rng.integers(-3, 7, 40)
    expected = [cross_entropy(row, y) for row, y in zip(logits, numbers, strict=True)]
    found = TwoHot(255, "symlog").loss(torch.from_numpy(logits), torch.from_numpy(numbers))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """Return the divergence of S categoricals with the probabilities [S, K]."""
    return sum(a * math.log(a / b) for row, other in zip(p, q, strict=True) for a, b in zip(row, other, strict=True))


def mixed(logits: np.ndarray) -> np.ndarray:
    """Mix 1 % of a uniform distribution into the network's (arXiv:2301.04104v1, "Unimix categoricals")."""
    return np.stack([0.99 * softmax(row) + 0.01 / len(row) for row in logits])


def test_dreamer_v3_kl_loss_matches_published_equation() -> None:
    """arXiv:2301.04104v1, eq. 5: β_dyn max(1, KL[sg(q) ‖ p]) + β_rep max(1, KL[q ‖ sg(p)]), .5 and .1."""
    rng = np.random.default_rng(0)
    posterior, prior = rng.normal(size=(2, 6, 3, 4)) * np.linspace(0.2, 1.5, 6)[:, None, None]
    logprobs = [latents.unimix(torch.from_numpy(x).requires_grad_(), 0.01) for x in (posterior, prior)]
    each = [kl(mixed(q), mixed(p)) for q, p in zip(posterior, prior, strict=True)]
    assert min(each) < 1 < max(each)
    found = v3.kl_loss(*logprobs, 0.5, 0.1, 1.0).detach()
    np.testing.assert_allclose(found.numpy(), [0.5 * max(1, x) + 0.1 * max(1, x) for x in each], rtol=1e-10)
    # The gradient of each side is that of the divergence times its weight, and zero below one nat.
    for side, weight in ((0, 0.1), (1, 0.5)):
        (gradient,) = torch.autograd.grad(v3.kl_loss(*logprobs, 0.5, 0.1, 1.0).sum(), logprobs[side], retain_graph=True)
        (whole,) = torch.autograd.grad(latents.categorical_kl(*logprobs).sum(), logprobs[side], retain_graph=True)
        counts = torch.tensor([x > 1 for x in each], dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(gradient, weight * counts * whole)


@pytest.mark.parametrize("alpha", [0.8, 0.5])
def test_dreamer_v2_kl_loss_matches_published_equation(alpha: float) -> None:
    """arXiv:2010.02193, algorithm 2: α KL[sg(q) ‖ p] + (1 - α) KL[q ‖ sg(p)]."""
    rng = np.random.default_rng(0)
    posterior, prior = rng.normal(size=(2, 5, 3, 4))
    logprobs = [torch.from_numpy(x).log_softmax(-1).requires_grad_() for x in (posterior, prior)]
    each = [
        kl(np.stack([*map(softmax, q)]), np.stack([*map(softmax, p)])) for q, p in zip(posterior, prior, strict=True)
    ]
    found = v2.kl_loss(*logprobs, alpha, 0.0, SingleProcess())
    np.testing.assert_allclose(found.detach().numpy(), each, rtol=1e-10)
    for side, weight in ((0, 1 - alpha), (1, alpha)):
        (gradient,) = torch.autograd.grad(found.sum(), logprobs[side], retain_graph=True)
        (whole,) = torch.autograd.grad(latents.categorical_kl(*logprobs).sum(), logprobs[side], retain_graph=True)
        torch.testing.assert_close(gradient, weight * whole)


def test_return_scale_matches_published_equation() -> None:
    """arXiv:2301.04104v1, eq. 12: S = Per(R, 95) - Per(R, 5), a moving average of decay .99, not below 1."""
    rng = np.random.default_rng(0)
    scale, low, high = ReturnScale(MomentsConfig(0.99, 1.0, PercentileConfig(0.05, 0.95))), 0.0, 0.0
    for n in range(30):
        returns = rng.normal(n, 40.0, (15, 8))
        low = 0.99 * low + 0.01 * float(np.percentile(returns, 5))
        high = 0.99 * high + 0.01 * float(np.percentile(returns, 95))
        found = scale(torch.from_numpy(returns), SingleProcess()).item()
        assert found == pytest.approx(max(1.0, high - low), rel=5e-7)
    assert found > 10


def test_imagine_continue_keeps_precision_of_bfloat16_logits() -> None:
    logits = torch.linspace(-9, 9, 37).bfloat16()  # bfloat16 has only two numbers between 0.99 and 1
    found = v3.imagine_continue(logits, "mean")
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), 1 / (1 + np.exp(-logits.double().numpy())), rtol=1e-6)


@pytest.mark.parametrize("ends", ["mode", "mean"])
@pytest.mark.parametrize(("variant", "mix"), [("multi_discrete", 1.0), ("mixed", 0.4)])
def test_dreamer_v3_objectives_match_published_equations(variant: str, mix: float, ends: str) -> None:
    """arXiv:2301.04104v1, eq. 7-12, of the network outputs along one imagined trajectory from every row.

    Rλ_t = r_t + γ c_t ((1 - λ) v_t+1 + λ Rλ_t+1), weighted by the probability to get there; the target critic
    value is a second target (eq. 10). c is 0 or 1 as in the authors' code, or the probability as in their code of 2024.
    """
    case = case_of(variant)
    learner, config = case.learner, case.learner.config
    head = dataclasses.replace(config.world_model.discount_model, imagined=ends)
    config = dataclasses.replace(config, world_model=dataclasses.replace(config.world_model, discount_model=head))
    learner.config = learner.behavior.config = config
    world, actor, nvec = learner.agent.world, learner.agent.actor, learner.agent.actor.action.nvec
    batch = given_step(learner, case.batch)[0]
    states = ModelState(**learner.model_loss(batch, Drawn(iter([case.noise["observed"]])))[3])
    low, high = float(learner.behavior.moments.low), float(learner.behavior.moments.high)

    def noise() -> Drawn:
        return Drawn(iter([case.noise["action"], case.noise["imagined"]]))

    policy = learner.behavior.actor_objective(states, batch.terminated, noise())
    value = learner.behavior.critic_objective(policy[3])
    start = ModelState(*(part.flatten(0, 1) for part in states))
    with torch.no_grad():
        feat, action, _ = imagine(world.rssm, actor, start, config.horizon, noise())
        hidden = actor.hidden(feat[:-1])
        heads = [head(hidden).numpy() for head in actor.heads]
        networks = {"reward": world.reward, "critic": learner.behavior.critic, "slow": learner.behavior.target_critic}
        logits = {name: network(feat).numpy() for name, network in networks.items()}
        chance, chosen = 1 / (1 + np.exp(-world.continue_head(feat)[..., 0].numpy())), action.numpy()
    steps, count = chosen.shape[:2]
    assert len(nvec) == 2 and steps == config.horizon and (chance > 0.5).any() and (chance < 0.5).any()
    continues = chance > 0.5 if ends == "mode" else chance

    returns, weight, v = np.zeros((steps, count)), np.zeros((steps, count)), np.zeros((steps + 1, count))
    for n in range(count):
        v[:, n] = [expectation(logits["critic"][t, n]) for t in range(steps + 1)]
        later = v[steps, n]
        for t in reversed(range(steps)):
            bootstrap = (1 - config.lmbda) * v[t + 1, n] + config.lmbda * later
            later = expectation(logits["reward"][t + 1, n]) + config.gamma * continues[t + 1, n] * bootstrap
            returns[t, n] = later
        weight[0, n] = not batch.terminated.flatten()[n]
        for t in range(1, steps):
            weight[t, n] = weight[t - 1, n] * config.gamma * continues[t, n]
    low = 0.99 * low + 0.01 * np.percentile(returns, 5)
    high = 0.99 * high + 0.01 * np.percentile(returns, 95)
    scale = max(1.0, high - low)

    of_actor = of_critic = 0.0
    for t in range(steps):
        for n in range(count):
            p = [mixed(head[t, n][None])[0] for head in heads]
            logprob = sum(math.log(part[i]) for part, i in zip(p, chosen[t, n], strict=True))
            entropy = -sum(float(part @ np.log(part)) for part in p)
            advantage = (returns[t, n] - v[t, n]) / scale
            objective = mix * logprob * advantage + (1 - mix) * advantage
            of_actor -= weight[t, n] * (objective + config.actor.ent_coef * entropy)
            row = logits["critic"][t, n]
            slow = expectation(logits["slow"][t, n])
            of_critic += weight[t, n] * (cross_entropy(row, returns[t, n]) + cross_entropy(row, slow))
    for found, expected in ((policy, of_actor), (value, of_critic)):
        assert found[1].item() == steps * count
        assert found[0].item() == pytest.approx(expected, rel=5e-7)
    np.testing.assert_allclose(policy[3]["returns"].numpy(), returns, rtol=5e-7)
    assert not policy[3]["weight"].requires_grad
    np.testing.assert_allclose(policy[3]["weight"].numpy(), weight, rtol=5e-7)

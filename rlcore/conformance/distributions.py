"""Conformance checks of an action distribution, for example a user's `distribution.type=package.module:Dist`.

    @pytest.mark.parametrize("check", conformance.DISTRIBUTION_CHECKS)
    def test_distribution(check):
        check(compose(["exp=ppo", "distribution.type=mine:Dist", "plugins=[mine]", "algo.total_steps=400"])[0])

The checks need an algorithm of the family PPO, A2C, recurrent PPO. They train for a few iterations, then use the
distribution for one observation. All discrete actions are enumerated; for continuous actions, the density is integrated
by quadrature over at most two dimensions. They do not fit `tanh_normal`, whose log-probability is not the density of
the agent's action (which is before the tanh).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.config.run import RunConfig
from rlcore.conformance.one_process import newest_obs
from rlcore.conformance.trainings import fresh, train_a_while
from rlcore.data.history import with_history
from rlcore.data.steps import transitions
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.spec import ActionSpec
from rlcore.train.trainer import Trainer
from rlcore.types import Batch

SAMPLES = 20_000
MOST_ACTIONS = 100_000
PANELS, NODES = {1: 200, 2: 16}, 8  # panels of the quadrature in each segment by number of dimensions; nodes of each
SIGMAS = 5.0  # allowed deviation of an estimate from samples, in standard errors


class _Grid(NamedTuple):
    """All actions of a discrete space, or the nodes of a quadrature.

    Attributes:
        action: [N, A].
        weight: [N]; 1 for discrete actions, else the weights of the quadrature.
        axes: for continuous actions, the nodes of each dimension, [n]; () for discrete ones.
    """

    action: Tensor
    weight: Tensor
    axes: tuple[Tensor, ...]


def probabilities_sum_to_one(config: RunConfig) -> None:
    """Check that the probabilities of all actions sum to 1, or that the density integrates to 1."""
    training = train_a_while(config)
    grid, mass = _masses(training)
    total = float(mass.sum())
    tolerance = 1e-2 if grid.axes else 1e-4
    assert abs(total - 1) < tolerance, (
        f"the probabilities of all actions must sum to 1 (density: integrate to 1), but the result is {total:.5f}"
    )


def samples_match_logprob(config: RunConfig) -> None:
    """Check that the frequencies of sampled actions agree with the probabilities that `logprob` returns."""
    training = train_a_while(config)
    grid, mass = _masses(training)
    sample = _samples(training)
    expected, count = mass / mass.sum(), len(sample)
    if not grid.axes:
        sizes = torch.tensor([*training.envs.spec.action.nvec])
        index = _index(sample, sizes)
        found = torch.bincount(index, minlength=len(expected)).double()
        allowed = SIGMAS * (count * expected * (1 - expected)).clamp(min=1).sqrt()
        worst = int(((found - count * expected).abs() / allowed).argmax())
        assert (found - count * expected).abs()[worst] <= allowed[worst], (
            f"action {grid.action[worst].tolist()} has the probability {expected[worst]:.4f} by logprob, but its share "
            f"of {count} samples is {found[worst] / count:.4f}"
        )
        return
    table = expected.view(*(len(axis) for axis in grid.axes))
    for dimension, axis in enumerate(grid.axes):
        others = [i for i in range(len(grid.axes)) if i != dimension]
        cumulative = (table.sum(others) if others else table).cumsum(0)
        share = torch.searchsorted(sample[:, dimension].double().sort().values, axis, right=True) / count
        distance = float((cumulative - share).abs().max())
        assert distance < 2.5 / math.sqrt(count) + 1e-2, (
            f"dimension {dimension}: the distribution function of the samples differs from that of logprob by "
            f"{distance:.4f}"
        )


def entropy_matches_samples(config: RunConfig) -> None:
    """Check that the entropy is the mean of -log π(a|s) over sampled actions."""
    training = train_a_while(config)
    sample = _samples(training)
    policy = _policy(training, len(sample))
    with torch.no_grad():
        surprise, entropy = -policy.logprob(sample).double(), float(policy.entropy()[0])
    error = SIGMAS * float(surprise.std()) / math.sqrt(len(sample)) + 1e-3
    assert abs(float(surprise.mean()) - entropy) < error, (
        f"entropy() is {entropy:.4f}, but the mean of -logprob(action) over {len(sample)} samples is "
        f"{float(surprise.mean()):.4f}"
    )


def first_ratio_is_one(config: RunConfig) -> None:
    """Check that PPO's probability ratio is 1 before the first gradient step, because the weights are the same."""
    training = fresh(config)
    learner: Any = training.learner
    steps, last = training.collector.collect(config.algo.collect_length)
    batch = Batch(steps, last, 0)
    with torch.no_grad():
        samples, weight = learner.samples(batch), transitions(batch).weight
        rows, weight = learner.draw(weight, np.random.default_rng(0))
        epoch = samples.at(rows[0], samples.advantage[rows[0]], weight[0])
        for index in range(len(rows[0])):
            part = map_leaves(lambda x, i=index: x[i], epoch)
            policy, _ = learner.agent(part.obs)
            ratio = (policy.logprob(part.action) - part.old_logprob).exp()
            off = float(((ratio - 1).abs() * (part.weight > 0)).max())
            assert off < 1e-3, (
                f"the probability ratio before the first gradient step differs from 1 by {off:.2g}: logprob in the "
                "loss is not that of data collection"
            )


DISTRIBUTION_CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    probabilities_sum_to_one,
    samples_match_logprob,
    entropy_matches_samples,
    first_ratio_is_one,
)


@torch.no_grad()
def _masses(training: Trainer) -> tuple[_Grid, Tensor]:
    """Return all actions, or the nodes of a quadrature, and the probability mass of each, [N] float64."""
    action = training.envs.spec.action
    assert not action.parts, "these checks need an action space that is not a Dict or Tuple"
    grid = _continuous_grid(training, action) if action.continuous else _discrete_grid(action)
    density = _policy(training, len(grid.action)).logprob(grid.action).double().exp()
    return grid, density.nan_to_num(0.0, 0.0, 0.0) * grid.weight  # outside of the support, logprob may be nan


def _discrete_grid(action: ActionSpec) -> _Grid:
    count = math.prod(action.nvec)
    assert count <= MOST_ACTIONS, f"the action space has {count:,} actions; use an environment with fewer"
    rows = torch.tensor([*itertools.product(*map(range, action.nvec))])
    return _Grid(rows, torch.ones(count, dtype=torch.float64), ())


def _continuous_grid(training: Trainer, action: ActionSpec) -> _Grid:
    """Return Gauss-Legendre nodes for an integral over all actions, also outside of the bounds.

    Each dimension is divided at its finite bounds, where a density may jump. x = c + s t / (1 - t²) maps (-1, 1) to all
    real numbers; c is the median of samples and s their interquartile range.
    """
    assert action.size in PANELS, f"the action has {action.size} dimensions; use an environment with at most 2"
    sample, columns = _samples(training).double(), list[tuple[Tensor, Tensor]]()
    for dimension, place in enumerate(action.open):
        low, center, high = sample[:, dimension].quantile(torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
        scale, bounds = max(high - low, 1e-6), (action.low[place], action.high[place])
        edges = sorted({-1.0, 1.0, *(_inverse((x - center) / scale) for x in bounds if math.isfinite(x))})
        nodes = np.concatenate([np.linspace(a, b, PANELS[action.size] + 1)[:-1] for a, b in itertools.pairwise(edges)])
        ends = np.append(nodes, 1.0)
        x, w = np.polynomial.legendre.leggauss(NODES)
        half = np.diff(ends) / 2
        t = torch.from_numpy(((ends[:-1] + half)[:, None] + half[:, None] * x).reshape(-1))
        weight = torch.from_numpy((half[:, None] * w).reshape(-1)) * scale * (1 + t**2) / (1 - t**2) ** 2
        columns.append((center + scale * t / (1 - t**2), weight))
    axes = tuple(x for x, _ in columns)
    rows = torch.cartesian_prod(*axes).view(-1, action.size)
    weight = torch.cartesian_prod(*(w for _, w in columns)).view(-1, action.size).prod(-1)
    return _Grid(rows.float(), weight, axes)


def _inverse(y: float) -> float:
    """Return t in (-1, 1) with t / (1 - t²) = y."""
    return 0.0 if y == 0 else (math.sqrt(1 + 4 * y * y) - 1) / (2 * y)


def _index(action: Tensor, sizes: Tensor) -> Tensor:
    """Return the index of each discrete action [N, A] in the list of all actions."""
    strides = sizes.flip(0).cumprod(0).flip(0) // sizes
    return (action.cpu() * strides).sum(-1)


def _samples(training: Trainer) -> Tensor:
    return _act(training, SAMPLES, Noise(training.config.seed, "policy", device=training.fabric.device))[0]


def _policy(training: Trainer, count: int) -> Policy:
    return _act(training, count, None)[1]


@torch.no_grad()
def _act(training: Trainer, count: int, rng: Noise | None) -> tuple[Tensor, Policy]:
    """Choose actions for `count` copies of one observation, greedily if `rng` is None.

    Return the actions [count, A] and the distribution from which they were chosen.
    """
    agent: Any = training.learner.agent
    obs = {key: x[:1].expand(count, *x.shape[1:]) for key, x in newest_obs(training).items()}
    found: list[Policy] = []
    head = agent.head.policy
    agent.head.policy = lambda *given: found.append(head(*given)) or found[-1]
    try:
        shown = with_history(agent, training.envs.spec)
        carry = map_leaves(lambda part: part.to(training.fabric.device), shown.initial(count))
        opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)
        _, action, _ = shown.act(carry, obs, opens, rng, rng is None)
    finally:
        del agent.head.policy
    return action.cpu(), found[-1]

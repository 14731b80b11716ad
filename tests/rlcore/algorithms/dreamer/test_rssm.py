"""Recurrent state-space model, imagination and scale of returns: properties that hold for any weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v3.config import ActorConfig, WorldModelConfig
from rlcore.algorithms.dreamer.dreamer_v3.layer_keys import HiddenConfig, RecurrentConfig
from rlcore.algorithms.dreamer.imagination import imagine
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.latents import CategoricalLatent, GaussianLatent, Latent
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import RSSM, ModelState
from rlcore.algorithms.dreamer.world_keys import MomentsConfig, PercentileConfig
from rlcore.functional.noise import Noise
from rlcore.functional.tree import leaves
from rlcore.nn.policy_head import ActionForm
from rlcore.spec import ActionSpec
from rlcore.types import SingleProcess

FEATURES, ACTIONS = 5, 3
BOX = ActionSpec("Box", (3,), "float32", low=(-2.0, 0.0, -float("inf")), high=(2.0, 1.0, float("inf")))


def make_rssm(decoupled: bool = False, latent: Latent | None = None) -> RSSM:
    config = WorldModelConfig(
        discrete_size=4,
        stochastic_size=3,
        decoupled_rssm=decoupled,
        recurrent_model=RecurrentConfig(6, 7),
        transition_model=HiddenConfig(5),
        representation_model=HiddenConfig(5),
    )
    rssm = RSSM(
        latent or CategoricalLatent(3, 4, 0.01), config, FEATURES, ACTIONS, 1.0, torch.Generator().manual_seed(0)
    ).double()
    with torch.no_grad():
        rssm.begin.uniform_(-1, 1, generator=torch.Generator().manual_seed(1))
    return rssm


def rows(rssm: RSSM, length: int, count: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(2)
    is_first = torch.zeros(length, count, dtype=torch.bool)
    is_first[0] = True
    return {
        "features": torch.randn(length, count, FEATURES, generator=rng, dtype=torch.float64),
        "prev_action": torch.randn(length, count, ACTIONS, generator=rng, dtype=torch.float64),
        "is_first": is_first,
        "noise": torch.rand(length, count, 3, generator=rng, dtype=torch.float64),
    }


def assert_close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


kinds = pytest.mark.parametrize(
    ("decoupled", "latent"),
    [(False, None), (True, None), (False, GaussianLatent(3, 0.1))],
    ids=["categorical", "decoupled", "normal"],
)


@kinds
def test_observe_resets_state_at_episode_start(decoupled: bool, latent: Latent | None) -> None:
    rssm = make_rssm(decoupled, latent)
    given = rows(rssm, 7, 2)
    given["is_first"][4] = True
    whole = rssm.observe(**given)
    for part in (slice(0, 4), slice(4, 7)):
        cut: Any = {name: value[part] for name, value in given.items()}
        alone = rssm.observe(**cut)
        for one, other in zip(leaves(whole), leaves(alone), strict=True):
            assert_close(one[part], other)


@kinds
def test_obs_step_matches_observe(decoupled: bool, latent: Latent | None) -> None:
    rssm = make_rssm(decoupled, latent)
    given = rows(rssm, 5, 2)
    states, _, _ = rssm.observe(**given)
    state = ModelState(*(torch.full((2, size), torch.nan, dtype=torch.float64) for size in rssm.sizes))
    for t in range(5):
        features, before, is_first, noise = (part[t] for part in given.values())
        state = rssm.obs_step(features, before, is_first, noise, state)
        assert_close(tuple(state), tuple(part[t] for part in states))


def test_gaussian_latent_has_minimum_std() -> None:
    latent, noise = GaussianLatent(2, 0.1), torch.tensor([[1.0, -2.0]])
    # softplus(0) = log 2; softplus(-100) = 0
    found = latent.of(torch.tensor([[3.0, -1.0, 0.0, -100.0]]))
    torch.testing.assert_close(found.std, torch.tensor([[math.log(2) + 0.1, 0.1]]))
    torch.testing.assert_close(latent.sample(found, noise), torch.tensor([[3.0 + math.log(2) + 0.1, -1.2]]))
    torch.testing.assert_close(latent.mode(found), torch.tensor([[3.0, -1.0]]))
    sample = latent.sample(latent.of(torch.zeros(1, 4)), latent.noise(Noise(0, "probe"), 20_000))
    torch.testing.assert_close(sample.std(0), torch.full((2,), math.log(2) + 0.1), rtol=0.03, atol=0)


def make_actor(rssm: RSSM) -> LatentActor:
    config, rng = ActorConfig(8, 1), torch.Generator().manual_seed(3)
    return LatentActor(sum(rssm.sizes), BOX, config.layers, config.policy("scaled"), True, 1.0, rng)


def test_imagine_steps_prior_with_clipped_actions() -> None:
    rssm = make_rssm().float()
    actor = make_actor(rssm)
    start = ModelState(torch.randn(4, 6), rssm.latent.mode(torch.randn(4, 3, 4)))
    feat, action, taken = imagine(rssm, actor, start, 3, Noise(0, "probe"))
    assert feat.shape == (4, 4, 18) and action.shape == (3, 4, 3)
    torch.testing.assert_close(feat[0], start.feat)
    torch.testing.assert_close(taken, actor.clip(action))
    rng = Noise(0, "probe")
    rng.normal(3, 4, 3)
    noise, state = rssm.noise(rng, 3, 4), start
    for t in range(3):
        state = rssm.img_step(state, actor.clip(action[t]), noise[t])
        torch.testing.assert_close(state.feat, feat[t + 1])
    found = torch.autograd.grad(feat.square().sum(), [*actor.parameters(), *rssm.parameters()], allow_unused=True)
    assert [part is not None for part in found] == [True] * len([*actor.parameters()]) + [False] * len(
        [*rssm.parameters()]
    ), "through the model to the actor alone"


def test_action_form_scales_unit_actions_to_bounds() -> None:
    form = ActionForm(BOX, "scaled")
    taken = form.to_env(torch.tensor([[1.0, -1.0, 3.0], [0.0, 0.5, -7.0]]))
    # [-2, 2] -> ±1 · 2; [0, 1] -> 0.5 ± 0.5; unchanged without bounds
    torch.testing.assert_close(taken, torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.75, -7.0]]))
    torch.testing.assert_close(form.from_env(taken), torch.tensor([[1.0, -1.0, 3.0], [0.0, 0.5, -7.0]]))


class Other(SingleProcess):
    """One of two ranks; the other rank has the given returns."""

    size = 2

    def __init__(self, theirs: Tensor) -> None:
        self.theirs = theirs

    def sum(self, value: Tensor) -> Tensor:
        assert not value[1].any()
        return value + torch.stack([torch.zeros_like(self.theirs), self.theirs])


def test_return_scale_uses_percentiles_of_all_ranks() -> None:
    config = MomentsConfig(decay=0.9, max=4.0, percentile=PercentileConfig(0.25, 0.75))
    scale = ReturnScale(config)
    # Of 0 ... 8 the quartiles are 2 and 6. With decay 0.9 from 0: 0.2 and 0.6, difference 0.4.
    returns = torch.arange(9.0)
    torch.testing.assert_close(scale(returns, SingleProcess()), torch.tensor(0.4))
    torch.testing.assert_close((scale.low, scale.high), (torch.tensor(0.2), torch.tensor(0.6)))
    torch.testing.assert_close(ReturnScale(config)(returns[:8] / 10, SingleProcess()), torch.tensor(0.25))  # 1 / max
    mine, theirs = torch.tensor([0.0, 3.0, 4.0, 7.0]), torch.tensor([1.0, 2.0, 5.0, 6.0])
    alone = ReturnScale(dataclasses.replace(config, max=1e9))
    both = ReturnScale(dataclasses.replace(config, max=1e9))
    torch.testing.assert_close(both(mine, Other(theirs)), alone(torch.cat([mine, theirs]), SingleProcess()))

"""Dreamer V1: Dream to Control: Learning Behaviors by Latent Imagination. Hafner et al. 2020, arXiv:1912.01603.

Read with:
    eq. 1, 8, latent dynamics                rlcore.nn.rssm.RSSM, rlcore.nn.rssm.GaussianLatent
    eq. 2-3, actor and critic                rlcore.nn.latent_actor.squashed_normal, rlcore.nn.dense.Dense
    eq. 4-6, value estimates                 Learner.actor_objective, rlcore.functional.returns.lambda_return
    eq. 7, actor                             actor_loss
    eq. 8, critic                            Learner.critic_objective, of a unit normal
    eq. 10, loss of the world model          Learner.model_loss, rlcore.functional.unit_normal

Batches are `rlcore.algorithms.dreamer_learner.Segment`s. From every row, with H = 4:

    imagined      s0 -> ŝ1   ŝ2   ŝ3   ŝ4
    reward              r̂1   r̂2   r̂3                   arrives with its state, and is of that state's value
    discount            γ̂1   γ̂2   γ̂3                   γ, or what the head of the episodes' ends says, which is ≤ γ
    value                    v2   v3   v4
    λ-return            V1   V2   V3                   Vt = r̂t + γ̂t ((1 - λ) vt+1 + λ Vt+1), with V4 = v4
    weight              1    γ̂1   γ̂1 γ̂2                of both losses

Departs from the paper: as its authors' code and SheepRL's `dreamer_v1` do: free nats of the mean KL, losses of imagined
states weighted, states that begin anew with each sequence. Greedy, a continuous action is the mean before the tanh.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.dreamer_learner import DreamerAgent, DreamerLearner, Segment, memory_and_plan
from rlcore.algorithms.dreamer_v1.config import Config
from rlcore.data.replay import Replay
from rlcore.functional.latents import mean_free_nats, normal_kl, normal_measures
from rlcore.functional.noise import Noise
from rlcore.functional.returns import lambda_return
from rlcore.functional.stats import reduce_loss
from rlcore.functional.unit_normal import UnitNormal, unit_normal_loss
from rlcore.nn.imagination import imagine
from rlcore.nn.rssm import GaussianLatent, ModelState
from rlcore.spec import EnvSpec
from rlcore.types import Context, Plan


class Agent(DreamerAgent):
    """Agent whose latents are normals."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        latent = GaussianLatent(config.world_model.stochastic_size, config.world_model.min_std)
        super().__init__(config, spec, distribution, rng, latent, UnitNormal())


def actor_loss(returns: Tensor, weight: Tensor) -> Tensor:
    """-V, eq. 7, weighted by the chance that the episode is still going on. [H - 1, N] each."""
    assert returns.shape == weight.shape, (returns.shape, weight.shape)
    return -weight * returns


class Learner(DreamerLearner):
    """Improves an `Agent` by one batch of sequences at a time."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, Agent, 1.0)

    def model_loss(self, batch: Segment, rng: Noise) -> Any:
        """Eq. 10: observations, reward and ends told of the states, and posterior and prior brought together."""
        config = self.config.world_model
        state, prior, posterior, observation, reward = self.observe(batch, rng, unit_normal_loss)
        target = self.config.gamma * (~batch.terminated).to(reward)  # [L, N]
        ends = config.continue_scale_factor * self.agent.world.continue_loss(state.feat, target)
        kl = mean_free_nats(normal_kl(posterior, prior), config.kl_free_nats, self.ranks)
        loss = observation + reward + ends + config.kl_regularizer * kl
        terms = {"observation": observation, "reward": reward, "continue": ends, "state": kl}
        return self.reduce_model_loss(loss, terms, normal_measures(posterior, prior), state)

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> Any:
        """Eq. 7 on trajectories from the states [L, N]; these, their λ-returns and weights, for the critic."""
        world, config = self.agent.world, self.config
        if world.goes_on is not None:  # the last row may be an episode's end, from which nothing goes on
            states = ModelState(*(part[:-1] for part in states))
        start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        feat = imagine(world.rssm, self.agent.actor, start, config.horizon, rng).feat[1:]  # [H, L·N, F]
        value = self.number.mean(self.critic(feat))  # [H, L·N]
        reward = world.predict_reward(feat[:-1])  # [H-1, L·N]
        discount = torch.full_like(reward, config.gamma)
        if world.goes_on is not None:
            discount = world.predict_continue(feat[:-1]).sigmoid()
        returns = lambda_return(reward, discount, value[1:], config.lmbda)  # [H-1, L·N]
        weight = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).detach().cumprod(0)  # [H-1, L·N]
        loss = actor_loss(returns, weight).flatten()
        found = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        return *found, {"feat": feat[:-1].detach(), "returns": returns.detach(), "weight": weight}


def build(context: Context) -> tuple[Learner, Replay, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    return Learner(context), *memory_and_plan(context)

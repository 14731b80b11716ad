"""Dreamer V1: Dream to Control: Learning Behaviors by Latent Imagination. Hafner et al. 2020, arXiv:1912.01603.

Equations of the paper and the code that implements them:
    eq. 1, latent dynamics                   rssm.RSSM, latents.GaussianLatent
    eq. 2-3, actor and critic                latent_actor.squashed_normal, dense.Dense
    eq. 4-6, value estimates                 Behavior.actor_objective, rlcore.functional.returns.lambda_return
    eq. 7, actor                             actor_loss
    eq. 8, critic                            behavior.DreamerBehavior.critic_objective, with UnitNormal
    eq. 10, loss of the world model          Learner.model_loss, rlcore.functional.scalars

A batch is a `sequences.Segment`: sequences of rows, one row per time step. A trajectory of H steps is imagined from the
model state of every row; with a continue head, of every row except the last of a sequence. Example with H = 4:

    imagined      s0 -> ŝ1   ŝ2   ŝ3   ŝ4
    reward              r̂1   r̂2   r̂3                   predicted at each state, and part of the value of that state
    discount            γ̂1   γ̂2   γ̂3                   γ, or the prediction of the continue head if there is one
    value                    v2   v3   v4
    λ-return            V1   V2   V3                   Vt = r̂t + γ̂t ((1 - λ) vt+1 + λ Vt+1), with V4 = v4
    weight              1    γ̂1   γ̂1 γ̂2                of the actor loss and the critic loss

Differences from the paper, which the authors' code and SheepRL's `dreamer_v1` have too:
    free nats apply to the mean KL of a batch; the losses of imagined states are weighted; the recurrent state is reset
    at the start of each sequence; a greedy continuous action is the tanh of the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.dreamer.agent import DreamerAgent, make_behavior_policy
from rlcore.algorithms.dreamer.behavior import DreamerBehavior
from rlcore.algorithms.dreamer.dreamer_v1.config import Config
from rlcore.algorithms.dreamer.imagination import Imagined, imagine
from rlcore.algorithms.dreamer.latents import Gaussian, GaussianLatent, mean_free_nats, normal_kl, normal_measures
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.returns import lambda_return
from rlcore.functional.scalars import UnitNormal, unit_normal_loss
from rlcore.functional.stats import LossTermsAux, reduce_loss
from rlcore.spec import EnvSpec
from rlcore.types import Context, TrainingSchedule

__all__ = ["Agent", "Behavior", "Config", "Learner", "build", "make_behavior_policy"]


class Agent(DreamerAgent):
    """Dreamer V1 agent: the stochastic part of the model state has a Gaussian distribution."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        latent = GaussianLatent(config.world_model.stochastic_size, config.world_model.min_std)
        super().__init__(config, spec, distribution, rng, latent, UnitNormal())


def actor_loss(returns: Tensor, weight: Tensor) -> Tensor:
    """Compute the actor loss of each imagined state (arXiv:1912.01603, eq. 7).

        L = -wₜ Vₜ        wₜ = Πᵢ γ̂ᵢ over i < t

    The paper has no weights w. The gradient of the actor passes through the λ-returns.

    Args:
        returns: [H - 1, N]; λ-returns Vₜ of N imagined trajectories.
        weight: [H - 1, N]; cumulative discounts wₜ.

    Returns:
        Loss, [H - 1, N].
    """
    assert returns.shape == weight.shape, (returns.shape, weight.shape)
    return -weight * returns


class Behavior(DreamerBehavior):
    """Actor and critic of Dreamer V1: the actor is trained by gradients through the model, the critic on λ-returns."""

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts at all imagined states except the last, [H-1, L·N]."""
        return self.world.predict_reward(imagined.feat[:-1])

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> LossTermsAux:
        """Compute the actor loss (arXiv:1912.01603, eq. 7) on trajectories imagined from the model states [L, N].

        The imagined states, their λ-returns and their weights are returned too; `critic_objective` needs them.
        """
        world, config = self.world, self.config
        if world.continue_head is not None:  # do not start at the last row: it can be the end of an episode
            states = ModelState(*(part[:-1] for part in states))
        start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        feat, action, taken = imagine(world.rssm, self.actor, start, config.horizon, rng)
        imagined = Imagined(feat[1:], action[1:], taken[1:])  # [H, L·N, F], [H-1, L·N, A], [H-1, L·N, A']
        feat = imagined.feat
        value = self.number.mean(self.critic(feat))  # [H, L·N]
        reward = self.reward(imagined)  # [H-1, L·N]
        discount = torch.full_like(reward, config.gamma)
        if world.continue_head is not None:
            discount = world.predict_continue(feat[:-1]).sigmoid()
        returns = lambda_return(reward, discount, value[1:], config.lmbda)  # [H-1, L·N]
        weight = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).detach().cumprod(0)  # [H-1, L·N]
        loss = actor_loss(returns, weight).flatten()
        total, count, logged = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        logged |= self.measure(self.critics[0], reward, value, returns)
        return total, count, logged, {"feat": feat[:-1].detach(), "returns": returns.detach(), "weight": weight}


class Learner(DreamerLearner):
    """Dreamer V1 learner: one gradient step of each optimizer per batch of sequences."""

    agent_class, behavior_class = Agent, Behavior
    config: Config

    def model_loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the loss of the world model (arXiv:1912.01603, eq. 10).

        J_REC = Σₜ ln q(oₜ|sₜ) + ln q(rₜ|sₜ) - β KL[p(sₜ|sₜ₋₁, aₜ₋₁, oₜ) ‖ q(sₜ|sₜ₋₁, aₜ₋₁)]

        The loss is -J_REC plus `continue_scale_factor` times the loss of the continue head. The model states are
        returned too; training of actor and critic starts from them.
        """
        config = self.config.world_model
        state, prior, posterior, observation, reward = self.observe(batch, rng, unit_normal_loss)
        assert isinstance(prior, Gaussian) and isinstance(posterior, Gaussian)
        target = self.config.gamma * (~batch.terminated).to(reward)  # [L, N]
        ends = config.continue_scale_factor * self.agent.world.continue_loss(self.head_input("continue", state), target)
        kl = mean_free_nats(normal_kl(posterior, prior), config.kl_free_nats, self.ranks)
        loss = observation + reward + ends + config.kl_regularizer * kl
        terms = {"observation": observation, "reward": reward, "continue": ends, "state": kl}
        return self.reduce_model_loss(loss, terms, normal_measures(posterior, prior), state)


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build learner, replay buffer and training schedule; the seed (random stream `init`) determines the weights."""
    return Learner(context), *memory_and_plan(context)

"""Dreamer V3: Mastering Diverse Domains through World Models. Hafner et al. 2023, arXiv:2301.04104v1.

Read with:
    eq. 1-2, symlog predictions              rlcore.functional.symlog, rlcore.nn.world_model.KeyEncoder.see
    eq. 3, recurrent state-space model       rlcore.nn.rssm.RSSM, rlcore.nn.world_model.WorldModel
    eq. 4-5, loss of the world model         Learner.model_loss, kl_loss
    eq. 6-7, actor, critic, λ-returns        rlcore.nn.imagination.imagine, rlcore.functional.returns.lambda_return
    eq. 8-9, two-hot critic                  critic_loss, rlcore.functional.two_hot.TwoHot
    eq. 10, regulariser of the critic        critic_loss, by its slow copy
    eq. 11-12, actor and scale of returns    actor_loss, rlcore.nn.return_scale.ReturnScale

Batches are `rlcore.algorithms.dreamer_learner.Segment`s; a row's ends as they are used here:

    t             0      1      2*     3      4          * obs 2 ended the episode
    continue      1      1      0      1      1          1 - terminated: an episode that is cut short goes on
    imagined      s0 -> ŝ1 -> ŝ2 ...                     from every row; reward and continue of the state stepped to

Departs from the paper: as its authors' code of 2023 and SheepRL's `dreamer_v3` do: continuous actions learn through the
model (`algo.actor.objective_mix`), states begin anew with each sequence, an imagined episode goes on where that is
likelier (`discount_model.imagined`; its chance counts in their code of 2024). Greedy, a continuous action is the mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcore import protocols
from rlcore.algorithms.dreamer_learner import DreamerAgent, DreamerLearner, Segment, memory_and_plan
from rlcore.algorithms.dreamer_v3.config import Config
from rlcore.data.replay import Replay
from rlcore.functional.latents import categorical_kl, categorical_measures, free_nats
from rlcore.functional.noise import Noise
from rlcore.functional.precision import widen
from rlcore.functional.returns import lambda_return
from rlcore.functional.stats import reduce_loss
from rlcore.functional.two_hot import TwoHot
from rlcore.functional.unit_normal import squared_distance
from rlcore.nn.imagination import imagine
from rlcore.nn.return_scale import ReturnScale
from rlcore.nn.rssm import CategoricalLatent, ModelState
from rlcore.nn.world_model import Number
from rlcore.spec import EnvSpec
from rlcore.types import Context, Plan


class Agent(DreamerAgent):
    """Agent whose latents are categorical with a share of a uniform one, and whose numbers are told by bins."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        model, zeros = config.world_model, config.hafner_initialization
        latent = CategoricalLatent(model.stochastic_size, model.discrete_size, config.unimix)
        scales = (1.0 if zeros else None, 0.0 if zeros else None)
        reward, value = (TwoHot(head.bins, head.spacing) for head in (model.reward_model, config.critic))
        super().__init__(config, spec, distribution, rng, latent, reward, value, scales)


def kl_loss(posterior: Tensor, prior: Tensor, dynamic: float, representation: float, nats: float) -> Tensor:
    """β_dyn max(1, KL[sg q ‖ p]) + β_rep max(1, KL[q ‖ sg p]), eq. 5. Log-probabilities [..., S, K] -> [...]."""
    to_prior = free_nats(categorical_kl(posterior.detach(), prior), nats)
    to_posterior = free_nats(categorical_kl(posterior, prior.detach()), nats)
    return dynamic * to_prior + representation * to_posterior


def imagine_continue(logits: Tensor, ends: str) -> Tensor:
    """c of eq. 7, [...]: "mean", the chance that an episode goes on; "mode", 0 or 1, the likelier, no gradient."""
    return widen(logits).sigmoid() if ends == "mean" else (logits > 0).float()


def critic_loss(logits: Tensor, returns: Tensor, slow: Tensor, number: Number) -> Tensor:
    """-log p(R) - log p(v_slow), eq. 10: returns, and what the slow copy says. logits [..., K], others [...]."""
    return number.loss(logits, returns) + number.loss(logits, slow)


def actor_loss(objective: Tensor, entropy: Tensor, weight: Tensor, coef: float) -> Tensor:
    """-(objective + η H), eq. 11, weighted by the chance that the episode is still going on. [H, N] each."""
    assert objective.shape == entropy.shape == weight.shape, (objective.shape, entropy.shape, weight.shape)
    return -weight * (objective + coef * entropy)


class Learner(DreamerLearner):
    """Improves an `Agent` by one batch of sequences at a time."""

    def __init__(self, context: Context) -> None:
        config: Config = context.config.algo
        self.moments: Any = context.fabric.to_device(ReturnScale(config.actor.moments))
        mix = config.actor.objective_mix
        self.mix = float(not context.spec.action.continuous) if mix is None else mix
        scale = 0.0 if config.hafner_initialization else None
        super().__init__(context, Agent, scale, [self.moments])

    def model_loss(self, batch: Segment, rng: Noise) -> Any:
        """Eq. 4: observations, reward and ends told of the states, and prior and posterior brought together."""
        config = self.config.world_model
        state, prior, posterior, observation, reward = self.observe(batch, rng, squared_distance)
        goes_on = (~batch.terminated).to(reward)  # [L, N]
        ends = config.continue_scale_factor * self.agent.world.continue_loss(state.feat, goes_on)
        kl = kl_loss(posterior, prior, config.kl_dynamic, config.kl_representation, config.kl_free_nats)
        loss = observation + reward + ends + config.kl_regularizer * kl
        terms = {"observation": observation, "reward": reward, "continue": ends, "state": kl}
        return self.reduce_model_loss(loss, terms, categorical_measures(posterior, prior), state)

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> Any:
        """Eq. 11 on trajectories from every state [L, N]; these, their λ-returns and weights, for the critic."""
        world, config, critic = self.agent.world, self.config, self.critic
        ends = config.world_model.discount_model.imagined
        start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        with torch.set_grad_enabled(self.mix < 1):  # REINFORCE needs none of what is imagined
            feat, action = imagine(world.rssm, self.agent.actor, start, config.horizon, rng)  # [H+1, L·N, F], [H, ...]
            value = self.number.mean(critic(feat))  # [H+1, L·N]
            reward = world.predict_reward(feat[1:])  # [H, L·N]
            goes_on = imagine_continue(world.predict_continue(feat[1:]), ends)  # [H, L·N]
            returns = lambda_return(reward, config.gamma * goes_on, value[1:], config.lmbda)  # [H, L·N]
        first = (~terminated).float().flatten().unsqueeze(0)  # no step leaves an episode's last row
        weight = torch.cat([first, config.gamma * goes_on[:-1].detach()]).cumprod(0)  # [H, L·N]
        advantage = (returns - value[:-1]) / self.moments(returns, self.ranks)
        policy = self.agent.actor.policy(feat[:-1].detach())
        objective = (1 - self.mix) * advantage if self.mix < 1 else torch.zeros_like(advantage)
        if self.mix > 0:
            objective = objective + self.mix * policy.logprob(action.detach()) * advantage.detach()
        loss = actor_loss(objective, policy.entropy(), weight, config.actor.ent_coef).flatten()
        found = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        return *found, {"feat": feat[:-1].detach(), "returns": returns.detach(), "weight": weight}

    def critic_objective(self, imagined: dict[str, Tensor]) -> Any:
        """Eq. 10 on imagined states, each as likely as its episode is still going on."""
        feat = imagined["feat"]  # [H, L·N, F]
        slow = self.number.mean(self.slow(feat))
        loss = critic_loss(self.critic(feat), imagined["returns"], slow, self.number) * imagined["weight"]
        return reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), Loss__value_loss=loss.flatten())

    def parts(self) -> dict[str, protocols.Part]:
        """Parts of every Dreamer, and the scale of returns."""
        return {**super().parts(), "moments": self.moments}


def build(context: Context) -> tuple[Learner, Replay, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    return Learner(context), *memory_and_plan(context)

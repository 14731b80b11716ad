"""Dreamer V2: Mastering Atari with Discrete World Models. Hafner, Lillicrap, Norouzi, Ba 2021, arXiv:2010.02193.

Equations of the paper and the code that implements them:
    eq. 1, recurrent state-space model       rssm.RSSM, world_model.WorldModel
    eq. 2, loss of the world model           Learner.model_loss, rlcore.functional.scalars
    algorithm 1, straight-through gradients  latents.sample_one_hot
    algorithm 2, KL balancing                kl_loss
    eq. 3, imagined trajectories             imagination.imagine
    eq. 4, λ-target                          Behavior.actor_objective, rlcore.functional.returns.lambda_return
    eq. 5, critic                            behavior.DreamerBehavior.critic_objective, with UnitNormal
    eq. 6, actor                             actor_loss

A batch is a `sequences.Segment`: sequences of rows, one row per time step. A trajectory of H steps is imagined from the
model state of every row. Example with H = 3:

    imagined      s0 -a0-> ŝ1 -a1-> ŝ2 -a2-> ŝ3
    reward        r̂0       r̂1       r̂2                 predicted at each state
    discount      γ0       γ̂1       γ̂2                 γ0 is not predicted: γ, or 0 if the row terminated its episode
    value         v0       v1       v2       v3        from the target critic
    λ-target      R0       R1       R2                 Rt = r̂t + γ̂t ((1 - λ) vt+1 + λ Rt+1), with R3 = v3
    critic        R0       R1       R2                 targets; the weights of their losses are 1, γ0 and γ0 γ̂1
    actor         R1 - v0  R2 - v1                     advantages of a0 and a1; the actor is not trained on a2

Differences from the paper, which the authors' code and SheepRL's `dreamer_v2` have too:
    free nats apply to the mean KL of a batch; rewards and values have normal distributions of variance 1; the
    recurrent state is reset at the start of each sequence; a greedy continuous action is the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.algorithms.dreamer.agent import DreamerAgent, make_behavior_policy
from rlcore.algorithms.dreamer.behavior import DreamerBehavior
from rlcore.algorithms.dreamer.dreamer_v2.config import Config
from rlcore.algorithms.dreamer.imagination import Imagined, imagine
from rlcore.algorithms.dreamer.latents import (
    CategoricalLatent,
    categorical_kl,
    categorical_measures,
    free_nats,
    mean_free_nats,
)
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.returns import lambda_return
from rlcore.functional.scalars import UnitNormal, unit_normal_loss
from rlcore.functional.stats import LossTermsAux, reduce_loss
from rlcore.spec import EnvSpec
from rlcore.types import Context, Ranks, TrainingSchedule

__all__ = ["Agent", "Behavior", "Config", "Learner", "build", "make_behavior_policy"]


class Agent(DreamerAgent):
    """Dreamer V2 agent: the stochastic part of the model state consists of categorical variables."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        latent = CategoricalLatent(config.world_model.stochastic_size, config.world_model.discrete_size, 0.0)
        super().__init__(config, spec, distribution, rng, latent, UnitNormal())


def kl_loss(posterior: Tensor, prior: Tensor, alpha: float, nats: float, ranks: Ranks | None) -> Tensor:
    """Compute the KL loss of each time step with KL balancing (arXiv:2010.02193, algorithm 2); sg = stop gradient.

        L = α KL[sg(q) ‖ p] + (1 - α) KL[q ‖ sg(p)]

    Args:
        posterior: [L, N, S, K]; log-probabilities of q(z | h, x).
        prior: [L, N, S, K]; log-probabilities of p(z | h).
        alpha: α; weight of the KL that trains the prior.
        nats: free nats; a KL below this value has no gradient.
        ranks: if given, free nats apply to the mean KL over the batches of all ranks; if None, they apply to the KL of
            each time step separately.

    Returns:
        Loss in nats, [L, N].
    """
    to_prior, to_posterior = categorical_kl(posterior.detach(), prior), categorical_kl(posterior, prior.detach())
    if ranks is None:
        return alpha * free_nats(to_prior, nats) + (1 - alpha) * free_nats(to_posterior, nats)
    return alpha * mean_free_nats(to_prior, nats, ranks) + (1 - alpha) * mean_free_nats(to_posterior, nats, ranks)


def actor_loss(
    logprob: Tensor, target: Tensor, baseline: Tensor, entropy: Tensor, weight: Tensor, mix: float, coef: float
) -> Tensor:
    """Compute the actor loss of each imagined step (arXiv:2010.02193, eq. 6); sg = stop gradient.

        L = -w (ρ log π(a | z) sg(V - v) + (1 - ρ) V + η H[π])

    The weights w are the cumulative discounts; the paper does not have them.

    Args:
        logprob: [H - 1, N]; log π of the imagined actions.
        target: [H - 1, N]; λ-targets V of the states that the actions lead to.
        baseline: [H - 1, N]; values v of the states in which the actions are taken.
        entropy: [H - 1, N]; entropy H[π] in nats.
        weight: [H - 1, N]; weights w.
        mix: ρ; weight of REINFORCE.
        coef: η; weight of the entropy bonus.

    Returns:
        Loss, [H - 1, N].
    """
    shapes = [part.shape for part in (logprob, target, baseline, entropy, weight)]
    assert len({*shapes}) == 1, shapes
    reinforce = logprob * (target - baseline).detach()
    return -weight * (mix * reinforce + (1 - mix) * target + coef * entropy)


class Behavior(DreamerBehavior):
    """Actor and critic of Dreamer V2: the actor loss mixes REINFORCE and gradients through the model."""

    config: Config

    @property
    def mix(self) -> float:
        """Weight ρ of REINFORCE in the actor loss; the default is 1 for discrete actions and 0 for continuous ones."""
        mix = self.config.actor.objective_mix
        return float(not self.actor.action.continuous) if mix is None else mix

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts at all imagined states except the last, [H, L·N]."""
        return self.world.predict_reward(imagined.feat[:-1])

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> LossTermsAux:
        """Compute the actor loss (arXiv:2010.02193, eq. 6) on trajectories imagined from the model states [L, N].

        The imagined states, their λ-targets and their weights are returned too; `critic_objective` needs them.
        """
        world, config = self.world, self.config
        start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        with torch.set_grad_enabled(self.mix < 1):  # REINFORCE needs no gradient through the trajectory
            imagined = imagine(world.rssm, self.actor, start, config.horizon, rng)
            feat, action = imagined.feat, imagined.action  # [H+1, L·N, F], [H, L·N, A]
            value = self.number.mean(self.target_critic(feat))  # [H+1, L·N]
            reward = self.reward(imagined)  # [H, L·N]
            discount = torch.full_like(reward, config.gamma)
            if world.continue_head is not None:
                first = config.gamma * (~terminated).to(reward).flatten().unsqueeze(0)  # known, not predicted
                discount = torch.cat([first, world.predict_continue(feat[1:-1]).sigmoid()])  # [H, L·N]
            target = lambda_return(reward, discount, value[1:], config.lmbda)  # [H, L·N]
        weight = torch.cat([torch.ones_like(discount[:1]), discount[:-1]]).detach().cumprod(0)  # [H, L·N]
        policy = self.actor.policy(feat[:-2].detach())
        logprob, entropy = policy.logprob(action[:-1].detach()), policy.entropy()  # [H-1, L·N]
        loss = actor_loss(
            logprob, target[1:], value[:-2], entropy, weight[:-1], self.mix, config.actor.ent_coef
        ).flatten()
        total, count, logged = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        logged |= self.measure(self.critics[0], reward, value, target)
        return total, count, logged, {"feat": feat[:-1].detach(), "returns": target.detach(), "weight": weight}


class Learner(DreamerLearner):
    """Dreamer V2 learner: one gradient step of each optimizer per batch of sequences."""

    agent_class, behavior_class = Agent, Behavior
    config: Config

    def model_loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the loss of the world model (arXiv:2010.02193, eq. 2).

        L = Σₜ -ln p(xₜ|hₜ, zₜ) - ln p(rₜ|hₜ, zₜ) - ln p(γₜ|hₜ, zₜ) + β KL[q(zₜ|hₜ, xₜ) ‖ p(zₜ|hₜ)]

        The model states are returned too; training of actor and critic starts from them.
        """
        config = self.config.world_model
        state, prior, posterior, observation, reward = self.observe(batch, rng, unit_normal_loss)
        assert isinstance(prior, Tensor) and isinstance(posterior, Tensor)
        target = self.config.gamma * (~batch.terminated).to(reward)  # [L, N]
        discount = config.discount_scale_factor * self.agent.world.continue_loss(
            self.head_input("continue", state), target
        )
        ranks = self.ranks if config.kl_free_avg else None
        kl = kl_loss(posterior, prior, config.kl_balancing_alpha, config.kl_free_nats, ranks)
        loss = observation + reward + discount + config.kl_regularizer * kl
        terms = {"observation": observation, "reward": reward, "continue": discount, "state": kl}
        return self.reduce_model_loss(loss, terms, categorical_measures(posterior, prior), state)


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build learner, replay buffer and training schedule; the seed (random stream `init`) determines the weights."""
    return Learner(context), *memory_and_plan(context)

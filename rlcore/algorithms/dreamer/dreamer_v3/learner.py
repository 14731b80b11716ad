"""Dreamer V3: Mastering Diverse Domains through World Models. Hafner et al. 2023, arXiv:2301.04104v1.

Equations of the paper and the code that implements them:
    eq. 1-2, symlog predictions              rlcore.functional.scalars, world_model.KeyEncoder.preprocess
    eq. 3, recurrent state-space model       rssm.RSSM, world_model.WorldModel
    eq. 4-5, loss of the world model         Learner.model_loss, kl_loss
    eq. 6-7, actor, critic, λ-returns        imagination.imagine, rlcore.functional.returns.lambda_return
    eq. 8-9, two-hot critic                  critic_loss, rlcore.functional.scalars.TwoHot
    eq. 10, regularizer of the critic        critic_loss, with the prediction of the target critic
    eq. 11-12, actor and scale of returns    actor_loss, return_scale.ReturnScale

A batch is a `sequences.Segment`: sequences of rows, one row per time step t:

    t             0      1      2*     3      4          * the episode ends at obs 2
    continue      1      1      0      1      1          1 - terminated; 1 if the episode is truncated
    imagined      s0 -> ŝ1 -> ŝ2 ...                     from every row; reward and continue of a step are predicted
                                                         at the state after the step

Differences from the paper, which the authors' code of 2023 and SheepRL's `dreamer_v3` have too:
    the gradient of continuous actions passes through the model (`algo.actor.objective_mix`);
    the recurrent state is reset at the start of each sequence; a greedy continuous action is the mean;
    an imagined episode continues if the predicted probability to continue is above ½ (`discount_model.imagined`). The
    authors' code of 2024 uses the probability itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.agent import DreamerAgent, make_behavior_policy
from rlcore.algorithms.dreamer.behavior import DreamerBehavior
from rlcore.algorithms.dreamer.critic import Critic, join
from rlcore.algorithms.dreamer.dreamer_v3.config import Config
from rlcore.algorithms.dreamer.imagination import Imagined, imagine
from rlcore.algorithms.dreamer.latents import CategoricalLatent, categorical_kl, categorical_measures, free_nats
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.functional.returns import lambda_return
from rlcore.functional.scalars import ScalarHead, TwoHot, squared_distance
from rlcore.functional.stats import LossTerms, LossTermsAux, reduce_loss
from rlcore.spec import EnvSpec
from rlcore.types import Context, TrainingSchedule

__all__ = ["Agent", "Behavior", "Config", "Learner", "build", "make_behavior_policy"]


class Agent(DreamerAgent):
    """Dreamer V3 agent, with two-hot predictions of reward and value.

    The stochastic part of the model state consists of categorical variables that are mixed with the uniform
    distribution (unimix).
    """

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        model, zeros = config.world_model, config.hafner_initialization
        latent = CategoricalLatent(model.stochastic_size, model.discrete_size, config.unimix)
        scales = (1.0 if zeros else None, 0.0 if zeros else None)
        reward, value = (TwoHot(head.bins, head.spacing) for head in (model.reward_model, config.critic))
        super().__init__(config, spec, distribution, rng, latent, reward, value, scales)


def kl_loss(posterior: Tensor, prior: Tensor, dynamic: float, representation: float, nats: float) -> Tensor:
    """Compute the KL loss of each time step (arXiv:2301.04104v1, eq. 4-5); sg = stop gradient.

        L = β_dyn max(1, KL[sg(q) ‖ p]) + β_rep max(1, KL[q ‖ sg(p)])

    Args:
        posterior: [..., S, K]; log-probabilities of q(z | h, x).
        prior: [..., S, K]; log-probabilities of p(z | h).
        dynamic: β_dyn; weight of the KL that trains the prior.
        representation: β_rep; weight of the KL that trains the posterior.
        nats: free nats, the lower limit of each KL; 1 in the paper and in the formula above.

    Returns:
        Loss in nats, [...].
    """
    to_prior = free_nats(categorical_kl(posterior.detach(), prior), nats)
    to_posterior = free_nats(categorical_kl(posterior, prior.detach()), nats)
    return dynamic * to_prior + representation * to_posterior


def imagine_continue(logits: Tensor, ends: str) -> Tensor:
    """Return the continue factors c of arXiv:2301.04104v1, eq. 7, [...], from the logits [...] of the continue head.

    With `ends="mean"`, c is the predicted probability that the episode continues. With `ends="mode"`, c is 1 if this
    probability is above ½, and otherwise 0; then c has no gradient.
    """
    return to_float32(logits).sigmoid() if ends == "mean" else (logits > 0).float()


def critic_loss(logits: Tensor, returns: Tensor, target: Tensor, number: ScalarHead) -> Tensor:
    """Compute the critic loss of each imagined state (arXiv:2301.04104v1, eq. 10).

        L = -log p(R | s) - log p(v' | s)

    Args:
        logits: [..., K]; outputs of the critic.
        returns: [...]; λ-returns R.
        target: [...]; predictions v' of the target critic.
        number: object that converts the critic's outputs to a distribution p of values.

    Returns:
        Loss in nats, [...].
    """
    return number.loss(logits, returns) + number.loss(logits, target)


def actor_loss(objective: Tensor, entropy: Tensor, weight: Tensor, coef: float) -> Tensor:
    """Compute the actor loss of each imagined step (arXiv:2301.04104v1, eq. 11).

        L = -w (objective + η H[π])

    Args:
        objective: [H, N]; advantages divided by the scale of returns; for REINFORCE, multiplied by log π(a | s).
        entropy: [H, N]; H[π] in nats.
        weight: [H, N]; cumulative discounts w, which the paper does not have.
        coef: η; weight of the entropy bonus.

    Returns:
        Loss, [H, N].
    """
    assert objective.shape == entropy.shape == weight.shape, (objective.shape, entropy.shape, weight.shape)
    return -weight * (objective + coef * entropy)


class Behavior(DreamerBehavior):
    """Actor and critic of Dreamer V3: advantages are divided by the scale of returns, and the critic is two-hot."""

    config: Config

    def make_modules(self, context: Context[Config]) -> Sequence[nn.Module]:
        """Create the scale of the returns of each critic, which is updated when the actor loss is computed."""
        self.scales = [context.fabric.to_device(ReturnScale(context.algo.actor.moments)) for _ in self.critics]
        self.moments = self.scales[0]
        return self.scales

    @property
    def mix(self) -> float:
        """Weight of REINFORCE in the actor loss; the default is 1 for discrete actions and 0 for continuous ones."""
        mix = self.config.actor.objective_mix
        return float(not self.actor.action.continuous) if mix is None else mix

    def critic_scale(self) -> float | None:
        """Return the initialization scale of the critic's output layer: 0 in the paper."""
        return 0.0 if self.config.hafner_initialization else None

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts at the states after each step, [H, L·N]."""
        return self.world.predict_reward(imagined.feat[1:])

    def actor_objective(self, states: ModelState, terminated: Tensor, rng: Noise) -> LossTermsAux:
        """Compute the actor loss (arXiv:2301.04104v1, eq. 11) on trajectories imagined from the model states [L, N].

        The imagined states, their λ-returns and their weights are returned too; `critic_objective` needs them.
        """
        world, config = self.world, self.config
        ends = config.world_model.discount_model.imagined
        start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
        with torch.set_grad_enabled(self.mix < 1):  # REINFORCE needs no gradient through the trajectory
            imagined = imagine(world.rssm, self.actor, start, config.horizon, rng)
            feat, action = imagined.feat, imagined.action  # [H+1, L·N, F], [H, L·N, A]
            values = [self.number.mean(critic.network(feat)) for critic in self.critics]  # [H+1, L·N] each
            rewards = [critic.reward(imagined) for critic in self.critics]  # [H, L·N] each
            continues = imagine_continue(world.predict_continue(feat[1:]), ends)  # [H, L·N]
            targets = [
                lambda_return(reward, config.gamma * continues, value[1:], config.lmbda)  # [H, L·N]
                for reward, value in zip(rewards, values, strict=True)
            ]
        first = (~terminated).float().flatten().unsqueeze(0)  # the last row of an episode has no next step
        weight = torch.cat([first, config.gamma * continues[:-1].detach()]).cumprod(0)  # [H, L·N]
        advantages, measures, aux = list[Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for critic, scale, reward, value, returns in zip(
            self.critics, self.scales, rewards, values, targets, strict=True
        ):
            advantages.append((returns - value[:-1]) / scale(returns, self.ranks) * critic.weight)
            measures |= self.measure(critic, reward, value, returns)
            aux[critic.returns] = returns.detach()
        advantage = sum(advantages[1:], advantages[0])  # [H, L·N]
        policy = self.actor.policy(feat[:-1].detach())
        objective = (1 - self.mix) * advantage if self.mix < 1 else torch.zeros_like(advantage)
        if self.mix > 0:
            objective = objective + self.mix * policy.logprob(action.detach()) * advantage.detach()
        loss = actor_loss(objective, policy.entropy(), weight, config.actor.ent_coef).flatten()
        total, count, logged = reduce_loss(loss, torch.ones_like(loss), Loss__policy_loss=loss)
        return total, count, logged | measures, {"feat": feat[:-1].detach(), "weight": weight} | aux

    def critic_objective(self, imagined: dict[str, Tensor], critic: Critic | None = None) -> LossTerms:
        """Compute the critic loss (arXiv:2301.04104v1, eq. 10) on imagined states, weighted by cumulative discounts."""
        feat, critic = imagined["feat"], critic or self.critics[0]  # [H, L·N, F]
        target = self.number.mean(critic.target_network(feat))
        loss = critic_loss(critic.network(feat), imagined[critic.returns], target, self.number) * imagined["weight"]
        return reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), Loss__value_loss=loss.flatten())

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the components from which another run can start: also the scales of returns."""
        names = [join(self.named("moments"), critic.key) for critic in self.critics]
        return {**super().networks(), **dict(zip(names, self.scales, strict=True))}


class Learner(DreamerLearner):
    """Dreamer V3 learner: one gradient step of each optimizer per batch of sequences."""

    agent_class, behavior_class = Agent, Behavior
    config: Config

    def model_loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the loss of the world model (arXiv:2301.04104v1, eq. 4).

        L = β_pred L_pred + β_dyn L_dyn + β_rep L_rep

        L_pred is the sum of three losses: of the predicted observations, rewards and continue flags. The model states
        are returned too; training of actor and critic starts from them.
        """
        config = self.config.world_model
        state, prior, posterior, observation, reward = self.observe(batch, rng, squared_distance)
        assert isinstance(prior, Tensor) and isinstance(posterior, Tensor)
        continues = (~batch.terminated).to(reward)  # [L, N]
        ends = config.continue_scale_factor * self.agent.world.continue_loss(
            self.head_input("continue", state), continues
        )
        kl = kl_loss(posterior, prior, config.kl_dynamic, config.kl_representation, config.kl_free_nats)
        loss = observation + reward + ends + config.kl_regularizer * kl
        terms = {"observation": observation, "reward": reward, "continue": ends, "state": kl}
        return self.reduce_model_loss(loss, terms, categorical_measures(posterior, prior), state)


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build learner, replay buffer and training schedule; the seed (random stream `init`) determines the weights."""
    return Learner(context), *memory_and_plan(context)

"""SAC: Soft Actor-Critic Algorithms and Applications. Haarnoja et al. 2018, arXiv:1812.05905; first arXiv:1801.01290.

Equations of the paper and the code that implements them:
    eq. 5-9, 18, losses J_Q, J_π, J(α)      rlcore.algorithms.sac.losses
    appendix C, squashed normal             rlcore.functional.distributions.TanhNormal
    algorithm 1, gradient step              Learner.gradient_step
    algorithm 1, environment step           rlcore.train.collect (one step of every environment)

Differences from the paper:
    the replay buffer stores actions before the tanh, and the log-probability does not include the scale of the
    environment's action bounds; the loss of α is linear in log α, as in the authors' code; targets are n-step returns
    if `n_step` > 1; the target of a truncated episode includes the predicted value of its last observation (the paper
    does not distinguish truncation from termination).

DroQ, CrossQ and SimBa use this learner with different config keys; see `droq.py`, `crossq.py` and `simba.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.algorithms.replay import make_replay
from rlcore.algorithms.sac.config import Config
from rlcore.algorithms.sac.critics import Critics
from rlcore.algorithms.sac.losses import actor_loss, alpha_loss, categorical_critic_loss, critic_loss, soft_target
from rlcore.algorithms.sac.squashed_actor import Agent, make_encoder
from rlcore.algorithms.sac.temperature import Temperature
from rlcore.config.run import AlgorithmConfig
from rlcore.data.history import add_history, rows_before
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.data.steps import Transition, n_step
from rlcore.functional.noise import Noise
from rlcore.functional.stats import LossTerms, LossTermsAux, mean_metrics, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.types import Batch, Context, Metrics, TrainingSchedule, Trajectory

__all__ = ["Agent", "Learner", "build"]
TRANSFERABLE = ("agent", "critics", "target")
OPTIMIZERS = ("critic_optimizer", "actor_optimizer", "alpha_optimizer")


class Learner(protocols.Learner):
    """SAC learner: one gradient step per batch of transitions.

    Args:
        context: config, environment spec, devices and ranks of the run (`rlcore.types.Context`).

    Attributes:
        config: config of the algorithm.
        agent: actor with its encoder.
        part_names: names of the attributes that are saved in a checkpoint. Some of them, such as the target critics, do
            not exist in every configuration.
    """

    config: Config
    agent: Agent
    part_names: ClassVar[tuple[str, ...]] = (*TRANSFERABLE, "temperature", "noise", "step", "critic_step", *OPTIMIZERS)

    def __init__(self, context: Context[Config]) -> None:
        config = self.config = context.algo
        self.ranks, self.updates, self.delay = context.ranks, 0, config.delay(context.num_envs)
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        encoder, size = make_encoder(config, context.spec, rng), context.spec.action.size
        encoder.normalizer = self.agent.encoder.normalizer  # actor and critics share the statistics
        self.critics = Critics(encoder, size, config.critic, config.critic.n, rng, config.critic.outputs)
        self.temperature, self.target_entropy = Temperature(config.alpha.alpha), config.alpha.target(size)
        self.target = Target(self.critics, context) if config.critic.target == "ema" else None
        if self.target:
            self.target.module.encoder.normalizer = encoder.normalizer
        targets = [self.target] if self.target else []
        self.critic_optimizer = self.make_critic_optimizer(context)
        uses = [self.critics, self.temperature]
        self.actor_optimizer = Optimizer(self.agent, self.actor_objective, config.actor.optimizer, context, uses=uses)
        self.alpha_optimizer = self.make_alpha_optimizer(context)
        if self.delay > 1:
            self.critic_step = Step(self.gradient_step_of_critics, [self.critic_optimizer], targets, context)
        optimizers = [each for each in (self.critic_optimizer, self.actor_optimizer, self.alpha_optimizer) if each]
        self.step = Step(self.gradient_step, optimizers, targets, context)
        self.transferable_components = TRANSFERABLE if self.target else ("agent", "critics")

    def make_critic_optimizer(self, context: Context[AlgorithmConfig]) -> Optimizer:
        """Create the critic optimizer (loss J_Q)."""
        uses = [self.agent, *([self.target.module] if self.target else []), self.temperature]
        return Optimizer(self.critics, self.critic_objective, self.config.critic.optimizer, context, uses=uses)

    def make_alpha_optimizer(self, context: Context[AlgorithmConfig]) -> Optimizer | None:
        """Create the optimizer of the temperature (loss J(α)), or return None if α is constant."""
        alpha = self.config.alpha
        return None if alpha.fixed else Optimizer(self.temperature, self.alpha_objective, alpha.optimizer, context)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Take one gradient step on a batch of N transitions of n steps each, [n, N], and return the metrics.

        Each gradient step updates the critics. Every `delay`-th one also updates policy and temperature.
        """
        config = self.config
        self.updates += 1
        self.agent.encoder.observe(batch.steps.obs, self.ranks)
        moves = self.updates % config.critic.target_network_frequency == 0
        step = self.critic_step if self.updates % self.delay else self.step
        metrics = step(batch.steps, batch.last, config.tau if moves else 0.0, rng=self.noise)
        return mean_metrics([metrics], self.ranks)

    def gradient_step(
        self, steps: Trajectory, last: Trajectory, tau: float, rng: Noise, policy: bool = True
    ) -> Metrics:
        """Update critics, policy, temperature and target critics (algorithm 1, "for each gradient step").

        Args:
            steps: rows of the N transitions, [n, N]; n > 1 for n-step returns.
            last: the time step after the last row of each transition, [N].
            tau: τ of the target critics' soft update; 0 = do not update the target critics.
            rng: random stream for actions and dropout.
            policy: if False, do not update policy and temperature.

        Returns:
            Means to log, name -> [].
        """
        batch = n_step(add_history(Batch(steps, last, 0), self.agent.history), self.config.gamma)
        metrics = self.improve_critics(batch, rng)
        if policy:
            metrics |= self.improve_actor(batch, rng)
        if self.target:
            self.target.update(self.critic_optimizer, tau)
        return metrics

    def gradient_step_of_critics(self, steps: Trajectory, last: Trajectory, tau: float, rng: Noise) -> Metrics:
        """Update only the critics and the target critics (DroQ, algorithm 2, lines 5 to 9)."""
        return self.gradient_step(steps, last, tau, rng, policy=False)

    def improve_critics(self, batch: Transition, rng: Noise) -> Metrics:
        """Take an optimizer step on the critic loss J_Q."""
        count = len(batch.weight)
        masks = self.critics.noise(count, rng), self.critics.noise(count, rng)
        found = self.critic_optimizer.minimize(batch, rng.normal(*batch.action.shape), *masks)
        return found.metrics | {"Info/critic_grad_norm": found.norm}

    def improve_actor(self, batch: Transition, rng: Noise) -> Metrics:
        """Take an optimizer step on the policy loss J_π, and one on the temperature loss J(α) unless α is constant."""
        masks = self.critics.noise(len(batch.weight), rng)
        found = self.actor_optimizer.minimize(batch, rng.normal(*batch.action.shape), masks)
        metrics = found.metrics | {"Info/actor_grad_norm": found.norm}
        if self.alpha_optimizer:
            metrics |= self.alpha_optimizer.minimize(found.aux["logprob"], batch.weight).metrics
        return metrics

    def critic_objective(
        self, batch: Transition, noise: Tensor, masks: Sequence[Tensor], target_masks: Sequence[Tensor]
    ) -> LossTerms:
        """Compute the critic loss J_Q of a batch of N transitions.

        Args:
            batch: the transitions.
            noise: [N, A]; noise from which the current policy computes the next actions.
            masks: dropout masks of the critics; () if they have no dropout.
            target_masks: dropout masks of the critics for the next observations; () if they have no dropout.

        Returns:
            The loss summed over samples [], the sum of the sample weights [], and the means to log (name -> []).
        """
        action = batch.action.tanh()
        with torch.no_grad():
            policy = self.agent(batch.next_obs)
            next_action = policy.sample(noise)
            logprob = policy.logprob(next_action)
        if self.target:
            outputs = self.critics.outputs(batch.obs, action, masks, self.ranks)
            with torch.no_grad():
                next_q = self.target.module(batch.next_obs, next_action.tanh(), target_masks)
        else:  # CrossQ, section 4.1: one forward pass for (s, a) and (s', a'), so that they share batch statistics
            obs = {key: torch.cat([batch.obs[key], batch.next_obs[key]]) for key in batch.obs}
            masks = [torch.cat(pair) for pair in zip(masks, target_masks, strict=True)]
            both = self.critics.outputs(obs, torch.cat([action, next_action.tanh()]), masks, self.ranks)
            outputs, next_outputs = both.chunk(2, 1)
            next_q = self.critics.read(next_outputs)
        target = soft_target(batch.reward, batch.discount, next_q.detach(), logprob, self.temperature.alpha)
        q, form = self.critics.read(outputs), self.critics.form
        loss = categorical_critic_loss(form, outputs, target) if form else critic_loss(q, target)
        return reduce_loss(loss, batch.weight, Loss__value_loss=loss, Info__q=q.mean(0))

    def actor_objective(self, batch: Transition, noise: Tensor, masks: Sequence[Tensor]) -> LossTermsAux:
        """Compute the policy loss J_π of a batch of N transitions.

        Args:
            batch: the transitions.
            noise: [N, A]; noise from which the policy computes its actions.
            masks: dropout masks of the critics; () if they have no dropout.

        Returns:
            The loss summed over samples [], the sum of the sample weights [], the means to log (name -> []), and the
            log-probabilities of the sampled actions ("logprob" -> [N]), which the temperature loss needs.
        """
        policy = self.agent(batch.obs, self.ranks)
        action = policy.sample(noise)
        logprob = policy.logprob(action)
        q = self.critics(batch.obs, action.tanh(), masks)
        loss = actor_loss(q, logprob, self.temperature.alpha, self.config.actor.q)
        found = reduce_loss(loss, batch.weight, Loss__policy_loss=loss, Info__entropy=-logprob)
        return *found, {"logprob": logprob.detach()}

    def alpha_objective(self, logprob: Tensor, weight: Tensor) -> LossTerms:
        """Compute the temperature loss J(α) of a batch.

        `logprob` [N] are the log-probabilities of sampled actions, `weight` [N] the weights of the samples. Return the
        loss summed over samples, the sum of the weights, and the means to log.
        """
        log_alpha = self.temperature.log_alpha
        loss = alpha_loss(log_alpha, logprob, self.target_entropy)
        return reduce_loss(loss, weight, Loss__alpha_loss=loss, Info__alpha=log_alpha.exp().expand_as(loss))

    def components(self) -> dict[str, protocols.Stateful]:
        """Return name -> component for everything that is saved in a checkpoint, such as networks and optimizers."""
        return {name: part for name in self.part_names if (part := getattr(self, name, None)) is not None}


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build the learner, the replay buffer and the training schedule of a run.

    The initial weights are random; they depend only on the seed of the run (`seed`).
    """
    learner = Learner(context)
    return learner, *make_replay(context, Transitions(context.algo.n_step), before=rows_before(learner.agent.history))

"""A2C: Asynchronous Methods for Deep Reinforcement Learning. Mnih et al. 2016, arXiv:1602.01783. Synchronous version.

Equations of the paper and the code that implements them:
    algorithm S3, return R              Learner.samples with gae_lambda=1 (n-step return with n up to T)
    algorithm S3, dθ                    policy_loss
    section 4, entropy bonus β          entropy_loss, `ent_coef`
    algorithm S3, dθ_v                  value_loss
    algorithm S3, asynchronous update   Learner.gradient_step (synchronous: one step on the rollout of all actors)

Differences from the paper:
    advantages are generalized advantage estimates (Schulman et al. 2016) with λ = `gae_lambda` = 0.95, as in SheepRL;
    the paper's advantages correspond to λ = 1;
    the return of a truncated episode includes the predicted value of its last observation;
    the default optimizer is PyTorch's RMSprop. `algo.optimizer.name=rmsprop_tf` selects the RMSprop variant of
    TensorFlow, which the authors used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.a2c.config import Config
from rlcore.algorithms.on_policy.actor_critic import ActorCritic as Agent
from rlcore.algorithms.on_policy.learner import OnPolicyLearner
from rlcore.data.history import add_history
from rlcore.data.minibatches import split
from rlcore.data.rollout import Rollout
from rlcore.data.steps import transitions
from rlcore.functional.stats import LossTerms, mean_over, reduce_loss, standardize
from rlcore.functional.tree import map_leaves
from rlcore.types import Batch, Context, Metrics, TrainingSchedule, Trajectory

__all__ = ["Agent", "Learner", "build"]


class A2CSamples(NamedTuple):
    """N samples (time steps) of a rollout.

    Shapes: `obs` maps keys to [N, ...], `action` is [N, A], the other tensors are [N]. `weight` is 1 for transitions
    and 0 for steps that only reset an environment; a sample of weight 0 does not contribute to the loss.
    """

    obs: dict[str, Tensor]
    action: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor

    def in_parts(self, count: int) -> list[A2CSamples]:
        """Split the samples into `count` parts of equal length.

        If N is not divisible by `count`, the last part is padded with repeated samples of weight 0.
        """
        if count == 1:
            return [self]
        place = torch.arange(math.ceil(len(self.weight) / count) * count, device=self.weight.device)
        filled = map_leaves(lambda column: column[place % len(column)], self)
        filled = filled._replace(weight=filled.weight * (place < len(self.weight)))
        return [part for (part,) in split(map_leaves(lambda column: column.unflatten(0, (count, -1)), filled), 1)]


def policy_loss(logprob: Tensor, advantage: Tensor) -> Tensor:
    """Compute the policy loss of each sample, [N] (arXiv:1602.01783, algorithm S3).

        L = -log π(aₜ|sₜ) Aₜ        Aₜ = R - V(sₜ)

    Minimizing L is gradient ascent along the paper's dθ, because ∇L = -dθ.
    """
    assert logprob.shape == advantage.shape, (logprob.shape, advantage.shape)
    return -(logprob * advantage)


def entropy_loss(entropy: Tensor) -> Tensor:
    """Return the negative entropy -H(π(·|sₜ)) of each sample, [N] in nats (arXiv:1602.01783, section 4)."""
    return -entropy


def value_loss(value: Tensor, returns: Tensor) -> Tensor:
    """Compute the value loss of each sample, [N] (arXiv:1602.01783, algorithm S3). There is no factor ½.

        L = (R - V(sₜ))²

    The gradient of L is the paper's dθ_v.
    """
    assert value.shape == returns.shape, (value.shape, returns.shape)
    return (value - returns).square()


class Learner(OnPolicyLearner):
    """A2C learner: one gradient step per rollout."""

    config: Config

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Update the agent with a rollout [T, B].

        Return the metrics: averages over the rollout, and the current values of coefficients such as the learning rate.
        """
        config, coefs = self.config, self.config.coefficients(batch.policy_steps)
        self.optimizer.set_lr(coefs["lr"])
        logged: list[Metrics] = []
        # In a rollout of one time step, all environments can be reset, so that it has no transition. This cannot
        # happen in a longer rollout, for which the sum over ranks is therefore skipped.
        if config.rollout_steps > 1 or self.ranks.sum(transitions(batch).weight.sum()):
            scaled = self.reward_scaler.scale(batch) if config.normalize_reward else batch
            of_loss = {name: coefs[name] for name in sorted(coefs) if name != "lr"}
            logged.append(self.step(scaled.steps, scaled.last, of_loss))
            self.updates += 1
        self.agent.observe(batch.steps.obs, self.ranks)
        return self.average([*logged, self.count_allowed(batch)], coefs)

    def gradient_step(self, steps: Trajectory, last: Trajectory, coefs: Mapping[str, float]) -> Metrics:
        """Take one optimizer step on the loss of a rollout (Mnih et al. 2016, algorithm S3); return the means to log.

        To limit memory, the rollout is split into parts of at most `per_rank_batch_size` samples. The gradients of all
        parts are summed before the optimizer step, so the split does not affect the result.

        Args:
            steps: rows of the rollout, [T, B].
            last: the time step after the last row, [B].
            coefs: name -> value of coefficients of the loss, such as `ent_coef`.

        Returns:
            Means to log, name -> [].
        """
        samples = self.samples(add_history(Batch(steps, last, 0), self.agent.history))
        if self.config.normalize_advantages:
            samples = samples._replace(advantage=standardize(samples.advantage, samples.weight, self.ranks.sum))
        count = len(samples.weight)
        parts = samples.in_parts(math.ceil(count / (self.config.per_rank_batch_size or count)))
        found = [self.optimizer.accumulate(part, coefs) for part in parts]
        metrics = mean_over(found, [part.weight.sum() for part in parts])
        return metrics | {"Info/grad_norm": self.optimizer.apply()}

    @torch.no_grad()
    def samples(self, batch: Batch) -> A2CSamples:
        """Return the N = T·B samples of a rollout [T, B], with their advantages and returns."""
        steps, step = batch.steps, transitions(batch)
        advantage = self.advantage(steps, step, batch.last.obs)
        samples = A2CSamples(steps.obs, steps.action, advantage, advantage + steps.extras["value"], step.weight)
        return map_leaves(lambda column: column.flatten(0, 1), samples)

    def loss(self, batch: A2CSamples, coefs: Mapping[str, float]) -> LossTerms:
        """Compute policy loss + `vf_coef` · value loss + `ent_coef` · entropy loss over N samples.

        Return the loss summed over samples, the sum of the sample weights, and the means to log.
        """
        policy, value = self.agent(batch.obs)
        of_policy = policy_loss(policy.logprob(batch.action), batch.advantage)
        of_entropy = entropy_loss(policy.entropy())
        of_value = value_loss(value, batch.returns)
        return reduce_loss(
            of_policy + self.config.vf_coef * of_value + coefs["ent_coef"] * of_entropy,
            batch.weight,
            Loss__policy_loss=of_policy,
            Loss__value_loss=of_value,
            Loss__entropy_loss=of_entropy,
        )


def build(context: Context[Config]) -> tuple[Learner, Rollout, TrainingSchedule]:
    """Build the learner, the rollout buffer and the training schedule of a run.

    The initial weights are random; they depend only on the seed of the run (`seed`).
    """
    return Learner(context), Rollout(), TrainingSchedule(context.algo.step_limit, context.algo.rollout_steps)

"""The loss of A2C, its update, and how a training of it is put together."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from rlcore.algorithms.a2c.config import Config
from rlcore.algorithms.actor_critic import ActorCriticLearner, Agent
from rlcore.data.rollout import Rollout, Samples
from rlcore.functional.stats import standardize
from rlcore.types import Batch, Context, Metrics, Plan

__all__ = ["Agent", "Learner", "build"]


class Learner(ActorCriticLearner):
    """Improves an `Agent` by one gradient step a rollout; compiled, the gradient is of the whole rollout at once."""

    def __init__(self, context: Context) -> None:
        config, rows = context.config.algo, context.config.algo.rollout_steps * context.num_envs
        self.chunks = 1 if context.compiler else math.ceil(rows / (config.per_rank_batch_size or rows))
        super().__init__(context, accumulate=self.chunks)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """One step on a rollout [T, B]; returns averages over it."""
        config, coefs, samples = self.config, self.coefficients(batch.policy_steps), self.samples(batch)
        if config.rollout_steps == 1 and not self.ranks.sum(samples.weight.sum()):
            return self.finish(batch, [], [], coefs)  # all reset; of two rows one counts, so that nothing is waited for
        if config.normalize_advantages:
            samples = samples._replace(advantage=standardize(samples.advantage, samples.weight, self.ranks.sum))
        parts = zip(*(column.chunk(self.chunks) for column in samples), strict=True)
        logged = [self.optimizer.accumulate(coefs["ent_coef"], *part) for part in parts]
        norm = self.optimizer.apply()
        self.updates += 1
        return self.finish(batch, logged, [norm], coefs)

    def loss(self, ent_coef: float, *columns: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """-log π(aₜ|sₜ) Âₜ + c (Vₜ - Rₜ)² - β H, summed over samples with columns [N, ...]; weight; means."""
        samples = Samples._make(columns)
        parameters, value = self.agent(samples.features)
        policy = self.agent.head.policy(parameters)
        policy_sum = -(policy.logprob(samples.action) * samples.advantage).dot(samples.weight)
        value_sum = (value - samples.returns).square().dot(samples.weight)
        entropy_sum = policy.entropy().dot(samples.weight)
        total = policy_sum + self.config.vf_coef * value_sum - ent_coef * entropy_sum
        sums = {"Loss/policy_loss": policy_sum, "Loss/value_loss": value_sum, "Loss/entropy_loss": -entropy_sum}
        count = samples.weight.sum()
        return total, count, {name: value.detach() / count.clamp(min=1) for name, value in sums.items()}


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    return Learner(context), Rollout(), Plan(config.total_steps, config.rollout_steps)

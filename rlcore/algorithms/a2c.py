"""A2C: Asynchronous Methods for Deep Reinforcement Learning. Mnih et al. 2016, arXiv:1602.01783. All actors at once.

Read with:
    algorithm S3, its two gradients     Learner.loss       (all actors' at once, from one rollout)
    section 4, entropy bonus β          `ent_coef`
    algorithm S3, R                     ActorCriticLearner.prepare with gae_lambda=1: the return of at most T steps

Departs from the paper:
    advantages are generalised (Schulman et al. 2016), as SheepRL has them: `gae_lambda` 0.95, 1 being the paper's;
    a truncated episode bootstraps from the value of its true last observation;
    the reference code's RMSProp is `algo.optimizer.name=rmsprop_tf`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlcore.algorithms.actor_critic import ActorCriticLearner, Agent
from rlcore.algorithms.on_policy import OnPolicyConfig
from rlcore.config.schema import arg
from rlcore.data.rollout import Rollout, Samples
from rlcore.functional.stats import standardize
from rlcore.optim.rules import OptimizerConfig
from rlcore.types import Batch, Context, Metrics, Plan

__all__ = ["Agent", "Config", "Learner", "build"]


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Keys that A2C adds, and its own defaults."""

    name: str = arg("a2c", "the algorithm", choices=("a2c",))
    rollout_steps: int = arg(5, "T: rows of every environment between updates", low=1)
    loss_reduction: str = arg("sum", "over the samples of a rollout", choices=("mean", "sum"))
    per_rank_batch_size: int | None = arg(
        None, "samples whose gradient is computed at once; changes memory, not the step; null = the rollout", low=1
    )
    optimizer: OptimizerConfig = arg(
        OptimizerConfig(name="rmsprop", lr=1e-3, eps=1e-4, betas=None), "one for actor and critic"
    )

    def gradient_steps(self, width: int, ranks: int = 1) -> int:
        """One a rollout."""
        return self.iterations(width)


class Learner(ActorCriticLearner):
    """Improves an `Agent` by one gradient step a rollout; compiled, the gradient is of the whole rollout at once."""

    def __init__(self, context: Context) -> None:
        config, rows = context.config.algo, context.config.algo.rollout_steps * context.num_envs
        self.parts = 1 if context.compiled else math.ceil(rows / (config.per_rank_batch_size or rows))
        super().__init__(context, accumulate=self.parts)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """One step on a rollout [T, B]; returns averages over it."""
        config, coefs, samples = self.config, self.coefficients(batch.policy_steps), self.samples(batch)
        if config.rollout_steps == 1 and not self.ranks.sum(samples.weight.sum()):
            return self.finish(batch, [], [], coefs)  # all reset; of two rows one counts, so that nothing is waited for
        if config.normalize_advantages:
            samples = samples._replace(advantage=standardize(samples.advantage, samples.weight, self.ranks.sum))
        parts = zip(*(column.chunk(self.parts) for column in samples), strict=True)
        logged = [self.optimizer.accumulate(coefs["ent_coef"], *part) for part in parts]
        norm = self.optimizer.apply()
        self.updates += 1
        return self.finish(batch, logged, [norm], coefs)

    def loss(self, ent_coef: float, *columns: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """-log π(aₜ|sₜ) Âₜ + c (Vₜ - Rₜ)² - β H, summed over samples with columns [N, ...]; weight; means."""
        samples = Samples._make(columns)
        with self.autocast():
            parameters, value = self.agent(samples.features)
        policy = self.agent.head.policy(parameters)
        policy_sum = -(policy.logprob(samples.action) * samples.advantage) @ samples.weight
        value_sum = (value - samples.returns).square() @ samples.weight
        entropy_sum = policy.entropy() @ samples.weight
        total = policy_sum + self.config.vf_coef * value_sum - ent_coef * entropy_sum
        sums = {"Loss/policy_loss": policy_sum, "Loss/value_loss": value_sum, "Loss/entropy_loss": -entropy_sum}
        count = samples.weight.sum()
        return total, count, {name: value.detach() / count.clamp(min=1) for name, value in sums.items()}


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    return Learner(context), Rollout(), Plan(config.total_steps, config.rollout_steps)

"""The losses of PPO, its update, and how a training of it is put together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.actor_critic import ActorCriticLearner, Agent
from rlcore.algorithms.ppo.config import Config
from rlcore.data.rollout import Rollout, Samples, minibatches
from rlcore.functional.stats import standardize
from rlcore.types import Batch, Context, Metrics, Plan

__all__ = ["Agent", "Learner", "build"]


def policy_loss(ratio: Tensor, advantage: Tensor, clip_coef: float, dual_clip: float | None = None) -> Tensor:
    """-L^CLIP, eq. 7: -min(ρ Â, clip(ρ, 1-ε, 1+ε) Â); dual clip c > 1: at most -c Â where Â < 0. All [N] -> [N]."""
    assert ratio.shape == advantage.shape, (ratio.shape, advantage.shape)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage)
    if dual_clip is not None:
        surrogate = torch.where(advantage < 0, torch.maximum(surrogate, dual_clip * advantage), surrogate)
    return -surrogate


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip_coef: float | None = None) -> Tensor:
    """(V - R)², eq. 9; with a clip ε the larger of it and (V_old + clip(V - V_old, ±ε) - R)². No ½. All [N] -> [N]."""
    assert value.shape == old_value.shape == returns.shape, (value.shape, old_value.shape, returns.shape)
    loss = (value - returns).square()
    if clip_coef is None:
        return loss
    clipped = old_value + (value - old_value).clamp(-clip_coef, clip_coef)
    return torch.maximum(loss, (clipped - returns).square())


class Learner(ActorCriticLearner):
    """Improves an `Agent` from one rollout at a time: algorithm 1's "optimize surrogate L, K epochs, minibatch M"."""

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Fit the agent to a rollout [T, B]; returns averages over the minibatches."""
        config, coefs = self.config, self.coefficients(batch.policy_steps)
        samples, logged, norms = self.samples(batch), [], []
        rows, weight = minibatches(samples.weight, config.per_rank_batch_size, config.update_epochs, rng)
        advantage = samples.advantage[rows]  # [K, number of minibatches, M]
        if config.normalize_advantages:
            advantage = standardize(advantage, weight.expand_as(advantage), self.ranks.sum)
        counts = weight.sum(-1)
        counted = self.ranks.sum(counts).nonzero().squeeze(-1).tolist()
        for order, gain in zip(rows, advantage, strict=True):
            for first in range(0, len(counted), config.accumulate_minibatches):
                for k in counted[first : first + config.accumulate_minibatches]:
                    minibatch = (order[k], weight[k], gain[k], coefs["clip_coef"], coefs["ent_coef"])
                    logged.append(self.optimizer.accumulate(*minibatch, *samples.columns()))
                if config.target_kl is not None and self.mean_kl(counts[k], logged[-1]) > 1.5 * config.target_kl:
                    self.optimizer.drop()
                    return self.finish(batch, logged, norms, coefs)
                norms.append(self.optimizer.apply())
                self.updates += 1
        return self.finish(batch, logged, norms, coefs)

    def loss(
        self, rows: Tensor, weight: Tensor, advantage: Tensor, clip_coef: float, ent_coef: float, *columns: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Eq. 9 as a loss, summed over samples; their weight; means for the log.

        The minibatch: rows [M] of the columns [N, ...] of `Samples`, with weights and advantages [M] of their own.
        """
        config, samples = self.config, Samples._make((*columns, weight)).rows(rows, weight)
        parameters, value = self.agent(samples.features)
        policy = self.agent.head.policy(parameters)
        log_ratio = policy.logprob(samples.action) - samples.old_logprob
        ratio = log_ratio.exp()
        clip_value = clip_coef if config.clip_vloss else None
        policy_sum = policy_loss(ratio, advantage, clip_coef, config.dual_clip).dot(weight)
        value_sum = value_loss(value, samples.old_value, samples.returns, clip_value).dot(weight)
        entropy_sum = policy.entropy().dot(weight)
        total = policy_sum + config.vf_coef * value_sum - ent_coef * entropy_sum
        with torch.no_grad():  # k3 of Schulman 2020, joschu.net/blog/kl-approx.html
            approx_kl, clipped = (ratio - 1) - log_ratio, ((ratio - 1).abs() > clip_coef).to(weight)
            count = weight.sum().clamp(min=1)
            sums = {
                "Loss/policy_loss": policy_sum,
                "Loss/value_loss": value_sum,
                "Loss/entropy_loss": -entropy_sum,
                "Info/approx_kl": approx_kl.dot(weight),
                "Info/clip_fraction": clipped.dot(weight),
            }
        return total, weight.sum(), {name: value.detach() / count for name, value in sums.items()}

    def mean_kl(self, count: Tensor, means: Metrics) -> float:
        """The KL over the samples of a minibatch, of all ranks: they stop together."""
        summed, total = self.ranks.sum(torch.stack([means["Info/approx_kl"] * count, count])).tolist()
        return summed / total


def build(context: Context) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.training needs, with weights drawn from the seed's `init` stream."""
    config: Config = context.config.algo
    return Learner(context, config.accumulate_minibatches), Rollout(), Plan(config.total_steps, config.rollout_steps)

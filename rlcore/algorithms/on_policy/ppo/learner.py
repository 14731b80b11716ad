"""PPO: Proximal Policy Optimization Algorithms. Schulman, Wolski, Dhariwal, Radford, Klimov 2017, arXiv:1707.06347.

Equations of the paper and the code that implements them:
    eq. 7, 9, losses                    rlcore.algorithms.on_policy.ppo.losses
    eq. 11-12, advantages               Learner.samples, rlcore.functional.returns.advantages
    algorithm 1                         Learner.optimize, take_steps and gradient_step, after Trainer.collect

Differences from the paper:
    the return of a truncated episode includes the predicted value of its last observation (the paper does not
    distinguish truncation from termination); advantages and returns are computed once per rollout, before the first
    gradient step. The options for normalization, annealing and `target_kl` are not in the paper. They became common
    later (Huang et al. 2022, "The 37 implementation details of PPO") and are off by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.actor_critic import ActorCritic as Agent
from rlcore.algorithms.on_policy.learner import OnPolicyLearner
from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.algorithms.on_policy.ppo.early_stop import GRAD_NORM, STEPS, STOP, average_steps, ends_loop
from rlcore.algorithms.on_policy.ppo.losses import Observations, PPOSamples, objective
from rlcore.data.history import gather_history
from rlcore.data.minibatches import minibatches, split
from rlcore.data.rollout import Rollout
from rlcore.data.steps import transitions
from rlcore.functional.noise import SortKeyStream
from rlcore.functional.stats import LossTerms, mean_over, standardize
from rlcore.optim.update import Update
from rlcore.types import Batch, Context, Metrics, TrainingSchedule, Trajectory

__all__ = ["Agent", "Learner", "PPOSamples", "build", "objective"]


class Learner(OnPolicyLearner):
    """PPO learner: algorithm 1 of the paper, "optimize surrogate L with K epochs and minibatch size M"."""

    config: Config

    def __init__(self, context: Context[Config]) -> None:
        super().__init__(context)
        self.device = context.fabric.device
        self.all_steps = Update(self.optimize, self.step)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Update the agent with a rollout [T, B]: several epochs of gradient steps on minibatches.

        Return the metrics: averages over the gradient steps, and the current values of coefficients such as the
        learning rate.
        """
        coefs = self.config.coefficients(batch.policy_steps)
        self.optimizer.set_lr(coefs["lr"])
        of_loss = {name: coefs[name] for name in sorted(coefs) if name != "lr"}
        scaled = self.reward_scaler.scale(batch) if self.config.normalize_reward else batch
        metrics = self.all_steps(scaled.steps, scaled.last, of_loss, rng=rng)
        self.updates = self._updates + metrics.pop(STEPS)
        self.agent.observe(batch.steps.obs, self.ranks)
        return self.average([metrics, self.count_allowed(batch)], coefs)

    def optimize(
        self,
        steps: Trajectory,
        last: Trajectory,
        coefs: Mapping[str, float],
        rng: np.random.Generator | SortKeyStream,
    ) -> Metrics:
        """Optimize the surrogate objective on a rollout, with K epochs and minibatch size M (algorithm 1).

        Args:
            steps: rows of the rollout, [T, B].
            last: the time step after the last row, [B].
            coefs: name -> current value of coefficients of the loss, such as `clip_coef`.
            rng: generator that draws the orders; in a CUDA graph, a stream of sort keys.

        Returns:
            Means to log, name -> [], and the number of gradient steps.
        """
        samples = self.samples(Batch(steps, last, 0))
        scope = self.config.advantage_scope if self.config.normalize_advantages else None
        if scope == "rollout":
            samples = samples._replace(advantage=standardize(samples.advantage, samples.weight, self.ranks.sum))
        rows, weight = self.draw(samples.weight.unflatten(0, steps.reward.shape), rng)
        advantage = samples.advantage[rows]
        if scope == "minibatch":
            advantage = standardize(advantage, weight, self.ranks.sum)
        return self.take_steps((samples.at(*epoch) for epoch in zip(rows, advantage, weight, strict=True)), coefs)

    @torch.no_grad()
    def samples(self, batch: Batch) -> PPOSamples[Observations]:
        """Return the N = T·B samples of a rollout [T, B], with advantages (arXiv:1707.06347, eq. 11-12) and returns."""
        steps, step = batch.steps, transitions(batch)
        obs, last = self.prepare_obs(batch)
        logprob, value = steps.extras["logprob"], steps.extras["value"]
        advantage = self.advantage(steps, step, last)
        columns = (steps.action, logprob, value, advantage, advantage + value, step.weight)
        return PPOSamples(obs, *(column.flatten(0, 1) for column in columns))

    def prepare_obs(self, batch: Batch) -> tuple[Observations, object]:
        """Return the agent's inputs at the time steps 0 to T-1 of a rollout [T, B], and its input at time step T.

        The inputs of selected samples are returned by the method `at` of the first result.
        """
        return gather_history(batch, self.agent.history, self.agent.keys)

    def draw(self, weight: Tensor, rng: np.random.Generator | SortKeyStream) -> tuple[Tensor, Tensor]:
        """Assign the samples of a rollout to minibatches of M samples, in each epoch.

        The order is random, and new in each epoch, unless `shuffle` is false.

        Args:
            weight: [T, B]; weights of the samples. Samples of weight 0 are not used.
            rng: generator that draws the orders.

        Returns:
            Sample indices t·B + b of each minibatch, [epochs, minibatches, M] int64, and the weights of these samples,
            which have the same shape.
        """
        config = self.config
        order, group = rng if config.shuffle else None, config.accumulate_minibatches
        size, epochs = config.per_rank_batch_size, config.update_epochs
        rows, weight = minibatches(weight, size, epochs, group, order, self.ranks)
        return rows, weight.expand_as(rows)

    def take_steps(self, epochs: Iterable[PPOSamples[object]], coefs: Mapping[str, float]) -> Metrics:
        """Take the gradient steps of an update.

        One gradient step uses `accumulate_minibatches` minibatches, or all minibatches of an epoch if the key is null.
        If the KL divergence of a step's minibatches exceeds 1.5 times `target_kl`, this step and all further steps of
        the update are skipped.

        Args:
            epochs: minibatches of each epoch, with tensors [minibatches, M, ...].
            coefs: name -> current value of coefficients such as `clip_coef`.

        Returns:
            Means to log, name -> [], and the number of gradient steps that were taken.
        """
        size, logged = self.config.accumulate_minibatches, list[Metrics]()
        stop = None if self.config.target_kl is None else torch.zeros((), dtype=torch.bool, device=self.device)
        for group in (group for epoch in epochs for group in split(epoch, size or len(epoch.weight))):
            logged.append(self.step(group, coefs, stop))
            stop = logged[-1].get(STOP)
            if stop is not None and ends_loop(stop, self.optimizer.scale is not None):
                break
        return average_steps(logged)

    def gradient_step(
        self, minibatches: Sequence[PPOSamples[object]], coefs: Mapping[str, float], stop: Tensor | None = None
    ) -> Metrics:
        """Take one gradient step on the PPO loss of several minibatches (arXiv:1707.06347, eq. 9); return means to log.

        If an earlier step of the update was skipped (`stop` [] bool), or if the KL divergence between old and new
        policy on these minibatches exceeds 1.5 times `target_kl`, the step is skipped and the returned metric `stop` is
        true. Without `target_kl`, `stop` is None.
        """
        found = [self.optimizer.accumulate(each, coefs) for each in minibatches]
        counts = [each.weight.sum() for each in minibatches]
        metrics = mean_over(found, counts)
        if self.config.target_kl is None:
            return metrics | {GRAD_NORM: self.optimizer.apply()}
        assert stop is not None
        kl = torch.stack([means["Info/approx_kl"] for means in found])
        count = torch.stack(counts)
        summed, total = self.ranks.sum(torch.stack([kl.dot(count), count.sum()])).unbind()  # ranks stop together
        stop = stop | (summed / total > 1.5 * self.config.target_kl)
        return metrics | {GRAD_NORM: self.optimizer.apply(unless=stop), STOP: stop}

    def loss(self, batch: PPOSamples[object], coefs: Mapping[str, float]) -> LossTerms:
        """Compute the PPO loss (arXiv:1707.06347, eq. 9) of a minibatch.

        Return the loss summed over samples, the sum of the sample weights, and the means to log.
        """
        policy, value = self.agent(batch.obs)
        return objective(policy, value, batch, coefs, self.config)


def build(context: Context[Config]) -> tuple[Learner, Rollout, TrainingSchedule]:
    """Build the learner, the rollout buffer and the training schedule of a run.

    The initial weights are random; they depend only on the seed of the run (`seed`).
    """
    return Learner(context), Rollout(), TrainingSchedule(context.algo.step_limit, context.algo.rollout_steps)

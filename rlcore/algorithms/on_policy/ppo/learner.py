"""PPO: Proximal Policy Optimization Algorithms. Schulman, Wolski, Dhariwal, Radford, Klimov 2017, arXiv:1707.06347.

Equations of the paper and the code that implements them:
    eq. 7, clipped surrogate L^CLIP     policy_loss        (dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5)
    eq. 9, value term (V - V_targ)²     value_loss         (value clipping comes from the authors' code)
    eq. 9, entropy bonus S              entropy_loss
    eq. 9, whole objective              objective
    eq. 11-12, advantages               Learner.samples, rlcore.functional.returns.advantages
    algorithm 1                         Learner.update, take_steps and gradient_step, after Trainer.collect

Differences from the paper:
    the return of a truncated episode includes the predicted value of its last observation (the paper does not
    distinguish truncation from termination); advantages and returns are computed once per rollout, before the first
    gradient step. The options for normalization, annealing and `target_kl` are not in the paper. They became common
    later (Huang et al. 2022, "The 37 implementation details of PPO") and are off by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.actor_critic import ActorCritic as Agent
from rlcore.algorithms.on_policy.learner import OnPolicyLearner
from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.data.history import gather_history
from rlcore.data.rollout import Rollout, fill_groups, minibatches, split
from rlcore.data.steps import transitions
from rlcore.functional.distributions import Policy
from rlcore.functional.stats import LossTerms, mean_over, reduce_loss, standardize
from rlcore.types import Batch, Context, Metrics, TrainingSchedule

__all__ = ["Agent", "Learner", "build"]


Obs = TypeVar("Obs")


class Observations(Protocol):
    """Observations of the N samples of a rollout."""

    def at(self, rows: Tensor, /) -> object:
        """Return the input of `Agent.forward` for the samples with the indices `rows` [*M]."""
        ...


class PPOSamples(NamedTuple, Generic[Obs]):
    """N samples (time steps) of a rollout, or of a minibatch.

    `action` is [N, A]; all other tensors except `obs` are [N]. `weight` is 1 for transitions and 0 for steps that only
    reset an environment; a sample of weight 0 does not contribute to the loss.

    In a minibatch, `obs` is the input of `Agent.forward`, key -> [N, ...]. In a rollout, it is `Observations`, from
    which minibatches are selected.
    """

    obs: Obs
    action: Tensor
    old_logprob: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor

    def at(self: PPOSamples[Observations], rows: Tensor, advantage: Tensor, weight: Tensor) -> PPOSamples[object]:
        """Select K minibatches of M samples each; the result has tensors [K, M, ...].

        `rows` [K, M] contains the indices of the samples. `advantage` and `weight` [K, M] replace the stored advantages
        and weights, for example because the advantages were standardized within each minibatch.
        """
        columns = (self.action, self.old_logprob, self.old_value, self.returns)
        action, old_logprob, old_value, returns = (column[rows] for column in columns)
        return PPOSamples(self.obs.at(rows), action, old_logprob, old_value, advantage, returns, weight)


def policy_loss(ratio: Tensor, advantage: Tensor, clip_coef: float, dual_clip: float | None = None) -> Tensor:
    """Compute the policy loss of each sample: -L, [N] (arXiv:1707.06347, eq. 7).

        L = min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)

    ρ is the probability ratio of the new and the old policy, Â the advantage, and ε the clip range. If a dual clip c
    above 1 is set, samples with Â < 0 use max(L, c Â) instead of L.
    """
    assert ratio.shape == advantage.shape, (ratio.shape, advantage.shape)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage)
    if dual_clip is not None:
        surrogate = torch.where(advantage < 0, torch.maximum(surrogate, dual_clip * advantage), surrogate)
    return -surrogate


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip_coef: float | None = None) -> Tensor:
    """Compute the value loss of each sample: (V - R)², [N] (arXiv:1707.06347, eq. 9). There is no factor ½.

    V is the predicted value, V_old the prediction during data collection, and R the return. If a clip range ε is given,
    the loss is the larger of (V - R)² and (V_old + clip(V - V_old, -ε, ε) - R)².
    """
    assert value.shape == old_value.shape == returns.shape, (value.shape, old_value.shape, returns.shape)
    loss = (value - returns).square()
    if clip_coef is None:
        return loss
    clipped = old_value + (value - old_value).clamp(-clip_coef, clip_coef)
    return torch.maximum(loss, (clipped - returns).square())


def entropy_loss(entropy: Tensor) -> Tensor:
    """Return the negative entropy of each sample, [N] in nats (arXiv:1707.06347, eq. 9).

    Minimizing it encourages exploration.
    """
    return -entropy


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate the KL divergence KL(π_old ‖ π) from actions that were sampled from π_old.

    `log_ratio` is log ρ, where ρ = π(a|s) / π_old(a|s). The estimate of each sample is (ρ - 1) - log ρ, called k3 in
    joschu.net/blog/kl-approx.html.
    """
    return (log_ratio.exp() - 1) - log_ratio


def objective(
    policy: Policy, value: Tensor, batch: PPOSamples[object], coefs: Mapping[str, float], config: Config
) -> LossTerms:
    """Compute the PPO loss (arXiv:1707.06347, eq. 9) of M samples: policy loss, value loss and entropy bonus.

    Args:
        policy: current policy, a distribution over actions [M, A].
        value: [M]; current predictions of the critic.
        batch: the samples.
        coefs: name -> current value of `clip_coef` and `ent_coef`.
        config: weight and clipping of the value loss, and the dual clip.

    Returns:
        The loss summed over samples [], the sum of the sample weights [], and the means to log (name -> []).
    """
    clip_coef = coefs["clip_coef"]
    log_ratio = policy.logprob(batch.action) - batch.old_logprob
    ratio, clip_value = log_ratio.exp(), clip_coef if config.clip_vloss else None
    of_policy = policy_loss(ratio, batch.advantage, clip_coef, config.dual_clip)
    of_value = value_loss(value, batch.old_value, batch.returns, clip_value)
    of_entropy = entropy_loss(policy.entropy())
    return reduce_loss(
        of_policy + config.vf_coef * of_value + coefs["ent_coef"] * of_entropy,
        batch.weight,
        Loss__policy_loss=of_policy,
        Loss__value_loss=of_value,
        Loss__entropy_loss=of_entropy,
        Info__approx_kl=approximate_kl(log_ratio.detach()),
        Info__clip_fraction=((ratio.detach() - 1).abs() > clip_coef).to(batch.weight),
    )


class Learner(OnPolicyLearner):
    """PPO learner: algorithm 1 of the paper, "optimize surrogate L with K epochs and minibatch size M"."""

    config: Config

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Update the agent with a rollout [T, B]: several epochs of gradient steps on minibatches.

        Return the metrics: averages over the gradient steps, and the current values of coefficients such as the
        learning rate.
        """
        coefs = self.config.coefficients(batch.policy_steps)
        self.optimizer.set_lr(coefs["lr"])
        if self.config.normalize_reward:
            batch = self.reward_scaler.scale(batch)
        samples = self.samples(batch)
        rows, weight = self.draw(samples.weight.unflatten(0, batch.steps.reward.shape), rng)
        advantage = samples.advantage[rows]
        if self.config.normalize_advantages:
            advantage = standardize(advantage, weight, self.ranks.sum)
        epochs = (samples.at(*epoch) for epoch in zip(rows, advantage, weight, strict=True))
        logged = self.take_steps(epochs, coefs)
        self.agent.observe(batch.steps.obs, self.ranks)
        return self.average(logged, coefs)

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

    def draw(self, weight: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Assign the samples of a rollout to minibatches of M samples, in a new random order for each epoch.

        Args:
            weight: [T, B]; weights of the samples. Samples of weight 0 are not used.
            rng: generator that draws the orders.

        Returns:
            Sample indices t·B + b of each minibatch, [epochs, minibatches, M] int64, and the weights of these samples,
            which have the same shape.
        """
        config = self.config
        drawn = minibatches(weight.flatten(), config.per_rank_batch_size, config.update_epochs, rng)
        rows, weight = fill_groups(*drawn, config.accumulate_minibatches, self.ranks.sum)
        return rows, weight.expand_as(rows)

    def take_steps(self, epochs: Iterable[PPOSamples[object]], coefs: Mapping[str, float]) -> list[Metrics]:
        """Take the gradient steps of an update.

        One gradient step uses `accumulate_minibatches` minibatches. If the KL divergence of a step's minibatches
        exceeds 1.5 times `target_kl`, this step and all further steps of the update are skipped.

        Args:
            epochs: minibatches of each epoch, with tensors [minibatches, M, ...].
            coefs: name -> current value of coefficients such as `clip_coef`.

        Returns:
            For each gradient step, and for the first skipped one, the means to log (name -> []).
        """
        config, logged = self.config, list[Metrics]()
        of_loss = {name: coefs[name] for name in sorted(coefs) if name != "lr"}
        for group in (group for epoch in epochs for group in split(epoch, config.accumulate_minibatches)):
            logged.append(self.step(group, of_loss))
            if config.target_kl is not None and logged[-1].pop("stop"):
                del logged[-1]["Info/grad_norm"]  # this step was not taken
                break
            self.updates += 1
        return logged

    def gradient_step(self, minibatches: Sequence[PPOSamples[object]], coefs: Mapping[str, float]) -> Metrics:
        """Take one gradient step on the PPO loss of several minibatches (arXiv:1707.06347, eq. 9); return means to log.

        If the KL divergence between old and new policy on these minibatches exceeds 1.5 times `target_kl`, the step is
        skipped and the returned metric `stop` is true.
        """
        found = [self.optimizer.accumulate(each, coefs) for each in minibatches]
        counts = [each.weight.sum() for each in minibatches]
        metrics = mean_over(found, counts)
        if self.config.target_kl is None:
            return metrics | {"Info/grad_norm": self.optimizer.apply()}
        kl = torch.stack([means["Info/approx_kl"] for means in found])
        count = torch.stack(counts)
        summed, total = self.ranks.sum(torch.stack([kl.dot(count), count.sum()])).unbind()  # ranks stop together
        stop = summed / total > 1.5 * self.config.target_kl
        return metrics | {"Info/grad_norm": self.optimizer.apply(unless=stop), "stop": stop}

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
    return Learner(context), Rollout(), TrainingSchedule(context.algo.total_steps, context.algo.rollout_steps)

"""Samples of a rollout, and the losses of PPO (Schulman et al. 2017, arXiv:1707.06347).

Equations of the paper and the code that implements them:
    eq. 7, clipped surrogate L^CLIP     policy_loss        (dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5)
    eq. 9, value term (V - V_targ)²     value_loss         (value clipping comes from the authors' code)
    eq. 9, entropy bonus S              entropy_loss
    eq. 9, whole objective              objective
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.functional.distributions import Policy
from rlcore.functional.stats import LossTerms, reduce_loss

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


def value_loss(
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    clip_coef: float | None = None,
    kind: str = "mse",
    cap: float | None = None,
) -> Tensor:
    """Compute the value loss of each sample: E(V, R), [N] (arXiv:1707.06347, eq. 9).

    V is the predicted value, V_old the prediction during data collection, R the return, and E the `value_error`. If a
    clip range ε is given, the loss is the larger of E(V, R) and E(V_old + clip(V - V_old, -ε, ε), R). If a cap is
    given, the loss is at most the cap; a sample above it has no gradient.
    """
    assert value.shape == old_value.shape == returns.shape, (value.shape, old_value.shape, returns.shape)
    loss = value_error(value, returns, kind)
    if clip_coef is not None:
        clipped = old_value + (value - old_value).clamp(-clip_coef, clip_coef)
        loss = torch.maximum(loss, value_error(clipped, returns, kind))
    return loss if cap is None else loss.clamp(max=cap)


def value_error(value: Tensor, returns: Tensor, kind: str) -> Tensor:
    """Compute the error of each predicted value [N]; `kind` is the config key `value_loss`.

    "mse" is the squared error d² of d = V - R, without a factor ½. "smooth_l1" is ½ d² if |d| < 1, otherwise |d| - ½.
    """
    if kind == "smooth_l1":
        return functional.smooth_l1_loss(value, returns, reduction="none")
    return (value - returns).square()


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
        config: kind, clipping and weight of the value loss, and the dual clip.

    Returns:
        The loss summed over samples [], the sum of the sample weights [], and the means to log (name -> []).
    """
    clip_coef = coefs["clip_coef"]
    log_ratio = policy.logprob(batch.action) - batch.old_logprob
    ratio, clip_value = log_ratio.exp(), (config.vf_clip_coef or clip_coef) if config.clip_vloss else None
    of_policy = policy_loss(ratio, batch.advantage, clip_coef, config.dual_clip)
    of_value = value_loss(value, batch.old_value, batch.returns, clip_value, config.value_loss, config.value_loss_cap)
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

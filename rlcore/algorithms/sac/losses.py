"""Losses of SAC (Haarnoja et al. 2018, arXiv:1812.05905).

Equations of the paper and the code that implements them:
    eq. 2-3, soft state value           soft_target
    eq. 5, soft Bellman residual J_Q    critic_loss, categorical_critic_loss
    eq. 7, policy objective J_π         actor_loss
    eq. 18, temperature J(α)            alpha_loss
"""

from __future__ import annotations

from torch import Tensor

from rlcore.functional.scalars import TwoHot


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_logprob: Tensor, alpha: Tensor) -> Tensor:
    """Compute the target of the critics (arXiv:1812.05905, eq. 2-3, with the minimum of N critics).

        y = r + d (minᵢ Q̄ᵢ(s', a') - α log π(a'|s'))

    Args:
        reward: [B]; reward r; for n-step returns, the sum of n discounted rewards.
        discount: [B] in [0, 1]; discount d: γⁿ, or 0 if the episode terminated within the n steps.
        next_q: [N, B]; values Q̄ᵢ(s', a') that the N target critics predict.
        next_logprob: [B]; log π(a'|s').
        alpha: []; temperature α.

    Returns:
        Targets y, [B].
    """
    assert reward.shape == next_logprob.shape == next_q.shape[1:], (reward.shape, next_logprob.shape, next_q.shape)
    return reward + discount * (next_q.amin(0) - alpha * next_logprob)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Compute the critic loss of each sample (arXiv:1812.05905, eq. 5). q [N, B], target y [B] -> [B].

    J_Q = ½ Σᵢ (Qᵢ(s, a) - y)²
    """
    assert q.shape[1:] == target.shape, (q.shape, target.shape)
    return 0.5 * (q - target).square().sum(0)


def categorical_critic_loss(form: TwoHot, logits: Tensor, target: Tensor) -> Tensor:
    """Compute the loss of categorical critics for each sample. logits [N, B, K], target y [B] -> [B].

        J_Q = Σᵢ CE(two-hot(y), pᵢ)

    CE is the cross-entropy, and pᵢ is the distribution over K bins of values that critic i predicts. `form` defines the
    bins. The loss is from Farebrother et al. 2024, arXiv:2403.03950, section 3.1; the bins are those of TD-MPC2,
    arXiv:2310.16828.
    """
    return form.loss(logits, target.expand(logits.shape[:-1])).sum(0)


def actor_loss(q: Tensor, logprob: Tensor, alpha: Tensor, kind: str = "min") -> Tensor:
    """Compute the policy loss of each sample (arXiv:1812.05905, eq. 7). q [N, B], logprob [B] -> [B].

        J_π = α log π(a|s) - minᵢ Qᵢ(s, a)

    `q` and `logprob` are functions of the sampled action a, and gradients flow through a to the policy. With
    `kind="mean"`, the mean over the critics replaces the minimum (DroQ, arXiv:2110.02034, algorithm 2, line 10).
    """
    assert q.shape[1:] == logprob.shape, (q.shape, logprob.shape)
    return alpha * logprob - (q.amin(0) if kind == "min" else q.mean(0))


def alpha_loss(log_alpha: Tensor, logprob: Tensor, target_entropy: float) -> Tensor:
    """Compute the temperature loss of each sample (arXiv:1812.05905, eq. 18). log_alpha [], logprob [B] -> [B].

        J(α) = -log α (log π(a|s) + H̄)

    H̄ is the target entropy. The paper has the factor α instead of log α; the authors' code uses log α.
    """
    return -log_alpha * (logprob.detach() + target_entropy)

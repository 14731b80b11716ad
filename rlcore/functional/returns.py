"""Returns and advantages: GAE, discounted sums and λ-returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORT = 16  # method="auto" uses the loop up to this many steps; a longer loop takes minutes to compile


@dataclass
class TransitionTargets:
    """Rewards and episode ends of the T transitions t → t+1 of a batch.

    Attributes:
        reward: [T, B] float32; reward of the transition.
        terminated: [T, B] bool; the transition leads to an absorbing state.
        done: [T, B] bool; the transition ends its episode (terminated or truncated).
        weight: [T, B] float32; 0 if the transition only resets the environment, otherwise 1.
    """

    reward: Tensor
    terminated: Tensor
    done: Tensor
    weight: Tensor


def advantages(
    step: TransitionTargets, value: Tensor, last_value: Tensor, gamma: float, gae_lambda: float, method: str = "loop"
) -> Tensor:
    """Compute the generalized advantage estimates of a rollout (see `gae`).

    Args:
        step: transitions, [T, B].
        value: [T, B]; value of the observation at the start of each transition. The last observation of an episode is
            included: the transition that starts there only resets the environment.
        last_value: [B]; value of the observation at the end of the last transition.
        gamma: discount factor γ.
        gae_lambda: trace decay λ.
        method: algorithm: "loop", "log_scan" (parallel scan) or "auto"; see `gae`.

    Returns:
        Advantages, [T, B].
    """
    next_value = torch.cat([value[1:], last_value.unsqueeze(0)])
    discount, trace = gamma * (~step.terminated).float(), gae_lambda * (~step.done).float()
    return gae(step.reward, discount, value, next_value, trace, method)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, trace: Tensor, method: str = "loop"
) -> Tensor:
    """Compute generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        δₜ = rₜ₊₁ + dₜ₊₁ v(sₜ₊₁) - v(sₜ)        Âₜ = δₜ + dₜ₊₁ cₜ₊₁ Âₜ₊₁

    Row t is the step t → t+1. The paper writes rₜ for our rₜ₊₁ and (γλ)ˡ for the product of d and c.

    Args:
        reward: [T, B], in the environment's unit.
        discount: [T, B] in [0, 1]; gamma, or 0 if the step terminated the episode.
        value: [T, B]; value of the observation before the step.
        next_value: [T, B]; value of the observation after the step. If the step truncated the episode, this is the
            value of its last observation.
        trace: [T, B] in [0, 1]; lambda, or 0 if the step ended the episode.
        method: "loop" iterates backwards over time. "log_scan" is a parallel scan of log2(T) operations; its results
            differ from those of the loop by rounding. "auto" uses the loop if T is at most 16, otherwise the scan.

    Returns:
        Advantages, [T, B]. They have gradients unless this function is called inside `torch.no_grad()`.
    """
    for other in (discount, value, next_value, trace):
        assert reward.shape == other.shape, (reward.shape, other.shape)
    delta = reward + discount * next_value - value
    if method == "log_scan" or (method == "auto" and len(delta) > SHORT):
        return discounted_scan(delta, discount * trace)
    return discounted_sum(delta, discount * trace)


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """Compute yₜ = xₜ + decayₜ yₜ₊₁ with y_T = 0 by a loop from t = T-1 to 0.

    x and decay are [T, ...], and the result y is [T, ...].
    """
    assert x.shape == decay.shape, (x.shape, decay.shape)
    total = torch.zeros_like(x[0])
    rows = []
    for x_t, decay_t in zip(reversed(x.unbind(0)), reversed(decay.unbind(0)), strict=True):
        total = torch.addcmul(x_t, decay_t, total)
        rows.append(total)
    return torch.stack(rows[::-1])


def discounted_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Compute yₜ = xₜ + decayₜ yₜ₊₁ with y_T = 0 by a parallel scan of log2(T) operations (Hillis and Steele 1986).

    x and decay are [T, ...], and the result y is [T, ...]. The scan combines pairs (decay, x) of adjacent ranges of
    time steps by the associative operation (d, x)∘(d', x') = (d d', x + d x').
    """
    assert x.shape == decay.shape, (x.shape, decay.shape)
    length = x.shape[0]
    total, product = x.clone(), decay.clone()
    width = 1
    while width < length:
        total[:-width] = total[:-width] + product[:-width] * total[width:]
        product[:-width] = product[:-width] * product[width:]
        width *= 2
    return total


def lambda_return(reward: Tensor, discount: Tensor, next_value: Tensor, lmbda: float) -> Tensor:
    """Compute λ-returns (Hafner et al. 2023, arXiv:2301.04104v1, eq. 7; Sutton and Barto 2018, section 12.1).

        Rₜ = rₜ₊₁ + dₜ₊₁ ((1 - λ) vₜ₊₁ + λ Rₜ₊₁)        R_H = v_H

    Row t is the step t → t+1. The paper writes rₜ and cₜ for our rₜ₊₁ and dₜ₊₁.

    Args:
        reward: [H, N]; reward of the step.
        discount: [H, N] in [0, 1]; γ, or 0 if the step ended the episode.
        next_value: [H, N]; value of the state after the step.
        lmbda: λ in [0, 1].

    Returns:
        λ-returns, [H, N], differentiable in all three tensors.
    """
    assert reward.shape == discount.shape == next_value.shape, (reward.shape, discount.shape, next_value.shape)
    value_share = torch.cat([(1 - lmbda) * discount[:-1], discount[-1:]])  # the last step bootstraps from v alone
    return discounted_sum(reward + value_share * next_value, lmbda * discount)

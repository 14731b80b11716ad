"""Returns and advantages along time: pure, tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORT = 16  # rows that "auto" goes through one by one: of more, a compiler needs minutes for the loop


@dataclass
class Outcomes:
    """The T steps t → t+1 of a batch.

    Attributes:
        reward: [T, B] float32, of the step.
        terminated: [T, B] bool; the step ended in an absorbing state.
        done: [T, B] bool; the step ended its episode in any way.
        weight: [T, B] float32; 0 for the step that only resets (to a row that opens an episode), else 1.
    """

    reward: Tensor
    terminated: Tensor
    done: Tensor
    weight: Tensor


def advantages(
    step: Outcomes, value: Tensor, last_value: Tensor, gamma: float, gae_lambda: float, method: str = "loop"
) -> Tensor:
    """Generalized advantage estimates of a rollout, by `gae`.

    Args:
        step: the transitions [T, B]: their rewards, and which ended an episode, in an absorbing state or in any way.
        value: [T, B], of the observations that the steps left, an episode's last among them.
        last_value: [B], of the observation after the last row.
        gamma: γ.
        gae_lambda: λ.
        method: of `gae`.

    Returns:
        [T, B].
    """
    next_value = torch.cat([value[1:], last_value.unsqueeze(0)])
    discount, trace = gamma * (~step.terminated).float(), gae_lambda * (~step.done).float()
    return gae(step.reward, discount, value, next_value, trace, method)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, trace: Tensor, method: str = "loop"
) -> Tensor:
    """Generalized advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        δₜ = rₜ₊₁ + dₜ₊₁ v(sₜ₊₁) - v(sₜ)        Âₜ = δₜ + dₜ₊₁ cₜ₊₁ Âₜ₊₁

    Row t is the step t → t+1. The paper writes rₜ for our rₜ₊₁ and (γλ)ˡ for the product of d and c.

    Args:
        reward: [T, B], in the env's unit.
        discount: [T, B] in [0, 1]; gamma, and 0 where the step terminated.
        value: [T, B], of the observation the step left.
        next_value: [T, B]; of a truncated step the value of its last observation.
        trace: [T, B] in [0, 1]; lambda, and 0 where the episode ended in any way.
        method: "loop" goes backwards step by step; "log_scan" in log2(T) rounds, equal but for the last bits; "auto" by
            the loop where T is at most SHORT.

    Returns:
        [T, B] advantages. Gradients are not stopped: wrap the call in no_grad.
    """
    for other in (discount, value, next_value, trace):
        assert reward.shape == other.shape, (reward.shape, other.shape)
    delta = reward + discount * next_value - value
    if method == "log_scan" or (method == "auto" and len(delta) > SHORT):
        return discounted_scan(delta, discount * trace)
    return discounted_sum(delta, discount * trace)


def discounted_sum(x: Tensor, decay: Tensor) -> Tensor:
    """yₜ = xₜ + decayₜ yₜ₊₁ with y_T = 0, step by step. x, decay: [T, ...] -> [T, ...]."""
    assert x.shape == decay.shape, (x.shape, decay.shape)
    total = torch.zeros_like(x[0])
    rows = []
    for x_t, decay_t in zip(reversed(x.unbind(0)), reversed(decay.unbind(0)), strict=True):
        total = torch.addcmul(x_t, decay_t, total)
        rows.append(total)
    return torch.stack(rows[::-1])


def discounted_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Discounted sum in log2(T) rounds (Hillis and Steele 1986), each over twice as many rows. x, decay: [T, ...].

    Pairs (decay, x) compose as (d, x)∘(d', x') = (d d', x + d x').
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
    """λ-returns (Hafner et al. 2023, arXiv:2301.04104v1, eq. 7; Sutton and Barto 2018, section 12.1).

        Rₜ = rₜ₊₁ + dₜ₊₁ ((1 - λ) vₜ₊₁ + λ Rₜ₊₁)        R_H = v_H

    Row t is the step t → t+1. The paper writes rₜ and cₜ for what arrives with the state that step leads to.

    Args:
        reward: [H, N], of the step.
        discount: [H, N] in [0, 1]; γ, and 0 where the step ended its episode.
        next_value: [H, N], of the state that the step leads to.
        lmbda: λ in [0, 1].

    Returns:
        [H, N], with gradients to all three.
    """
    assert reward.shape == discount.shape == next_value.shape, (reward.shape, discount.shape, next_value.shape)
    value_share = torch.cat([(1 - lmbda) * discount[:-1], discount[-1:]])  # behind the last step: the value alone
    return discounted_sum(reward + value_share * next_value, lmbda * discount)

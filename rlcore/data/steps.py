"""The only place that knows the time alignment of `Steps` (drawn in rlcore/types.py), and how rewards enter them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.config.groups import EnvConfig
from rlcore.functional.returns import Outcomes
from rlcore.types import Batch


def transitions(batch: Batch) -> Outcomes:
    """Outcomes: what the step from each row to the next brought; what arrived with row t+1 belongs to step t."""
    steps, last = batch.steps, batch.last
    # Where rows of one recording follow those of another, no end stands before the row that opens an episode.
    reset = steps.terminated | steps.truncated | shift(steps.is_first, last.is_first)
    done = shift(reset, last.terminated | last.truncated) & ~reset
    terminated = shift(steps.terminated, last.terminated)
    return Outcomes(shift(steps.reward, last.reward), terminated, done, (~reset).float())


class Transition(NamedTuple):
    """N transitions of up to n steps each, without order.

    Attributes:
        obs: key -> [N, ...], where they begin.
        action: [N, A], of the first step.
        reward: [N] float32, Σ γᵏ rₖ until the episode ended, n steps at most.
        discount: [N], γᵏ after those k steps; 0 where they terminated.
        next_obs: key -> [N, ...], where they end.
        weight: [N] float32; 0 where the first step only resets, else 1.
    """

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: dict[str, Tensor]
    weight: Tensor


def n_step(batch: Batch, gamma: float) -> Transition:
    """The transitions from row 0 of a batch [n, N] to the arrival after it, or to where the episode ended before.

    One that was cut short by a time limit ends at its last observation, from which the rest may be estimated.
    """
    steps, last, step = batch.steps, batch.last, transitions(batch)
    goes_on = (~step.done).to(step.reward)
    reached = torch.cat([torch.ones_like(goes_on[:1]), goes_on[:-1].cumprod(0)])  # [n, N]; 1: step k is of the episode
    decay = gamma ** torch.arange(len(reached), device=reached.device, dtype=reached.dtype).unsqueeze(-1)
    count = reached.sum(0)  # [N], steps until the end
    terminated = (step.terminated * reached).any(0)
    end = count.long()
    rows = torch.arange(steps.reward.shape[1], device=end.device)
    ends = {
        key: last.obs[key] if len(reached) == 1 else torch.cat([value, last.obs[key].unsqueeze(0)])[end, rows]
        for key, value in steps.obs.items()
    }
    return Transition(
        {key: value[0] for key, value in steps.obs.items()},
        steps.action[0],
        (step.reward * decay * reached).sum(0),
        gamma**count * (~terminated).to(count),
        ends,
        step.weight[0],
    )


def shift(rows: Tensor, last: Tensor) -> Tensor:
    """Rows 1..T of [T, B, ...] followed by the arrival [B, ...] after them: [T, B, ...]."""
    return torch.cat([rows[1:], last.unsqueeze(0)])


def learned_reward(config: EnvConfig, reward: Tensor) -> Tensor:
    """Rewards [...] as the learner sees them: times `reward_scale`, and the tanh of that with `clip_rewards`."""
    scaled = reward if config.reward_scale == 1 else reward * config.reward_scale
    return scaled.tanh() if config.clip_rewards else scaled

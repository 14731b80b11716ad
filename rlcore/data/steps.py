"""Conversion of the rows (time steps) of a batch to transitions between consecutive rows.

Only this module depends on the time alignment of rows, which is shown by a table in rlcore/types.py: `reward[t]` is
returned together with `obs[t]`, so it is the reward of the step t-1 → t.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.config.groups import EnvConfig
from rlcore.functional.returns import TransitionTargets
from rlcore.types import Batch

CLOSEST = 1 - 2.0**-24  # the largest number below 1 in float32


def transitions(batch: Batch) -> TransitionTargets:
    """Return reward, terminated, done and weight, [T, B], of each transition t → t+1 of a batch.

    Reward and flags are those of row t+1. The weight is 0 if the step only resets the environment, otherwise 1.
    """
    steps, last = batch.steps, batch.last
    # In concatenated recordings, an episode can start although no episode ended in the row before.
    reset = steps.terminated | steps.truncated | shift(steps.is_first, last.is_first)
    done = shift(reset, last.terminated | last.truncated) & ~reset
    terminated = shift(steps.terminated, last.terminated)
    return TransitionTargets(shift(steps.reward, last.reward), terminated, done, (~reset).float())


class Transition(NamedTuple):
    """N independent transitions, each over up to n steps.

    Attributes:
        obs: key -> [N, ...], observation before the first step.
        action: [N, A], action of the first step.
        reward: [N] float32, sum of γᵏ rₖ over the steps k = 0, 1, … of the transition. It has n steps, or fewer if the
            episode ends earlier.
        discount: [N], γ to the power of the number of steps of the transition; 0 if the episode terminated.
        next_obs: key -> [N, ...], observation after the last step of the transition.
        weight: [N] float32; 0 if the first step only resets the environment, otherwise 1.
    """

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: dict[str, Tensor]
    weight: Tensor


def n_step(batch: Batch, gamma: float) -> Transition:
    """Compute N n-step transitions from a batch [n, N]: each starts in row 0 and ends in the time step after row n-1.

    If the episode ends earlier, the transition has fewer steps, and `next_obs` is the last observation of the episode.
    If the episode was truncated, the caller can bootstrap from `next_obs`.
    """
    steps, last, step = batch.steps, batch.last, transitions(batch)
    continues = (~step.done).to(step.reward)
    reached = torch.cat(
        [torch.ones_like(continues[:1]), continues[:-1].cumprod(0)]
    )  # [n, N]; 1 if step k belongs to the episode
    decay = gamma ** torch.arange(len(reached), device=reached.device, dtype=reached.dtype).unsqueeze(-1)
    count = reached.sum(0)  # [N], number of steps of the transition
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
    """Shift rows [T, B, ...] by one time step: return rows 1..T-1 followed by `last` [B, ...], together [T, B, ...]."""
    return torch.cat([rows[1:], last.unsqueeze(0)])


def transform_reward(config: EnvConfig, reward: Tensor) -> Tensor:
    """Multiply rewards [...] by `env.reward_scale`; if `env.clip_rewards` is true, then apply tanh."""
    scaled = reward if config.reward_scale == 1 else reward * config.reward_scale
    return scaled.tanh() if config.clip_rewards else scaled


def restore_reward(config: EnvConfig, reward: Tensor) -> Tensor:
    """Invert `transform_reward`: return the environment's rewards [...].

    If `env.clip_rewards` is true, rewards whose tanh is ±1 in float32 cannot be restored. Their result is about ±8.7
    divided by `env.reward_scale`; its transformed value is ±1 again, up to rounding.
    """
    if config.clip_rewards:
        reward = reward.double().clamp(-CLOSEST, CLOSEST).atanh().float()
    return reward if config.reward_scale == 1 else reward / config.reward_scale

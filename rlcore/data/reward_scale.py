"""Reward normalization: division by the running standard deviation of the discounted return."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rlcore.data.steps import transitions
from rlcore.functional.returns import TransitionTargets
from rlcore.functional.stats import RunningMoments
from rlcore.types import Batch, Ranks, SingleProcess, State


class RewardScaler:
    """Division of rewards by the standard deviation of discounted returns (Engstrom et al. 2020, arXiv:2005.12729).

    As in the paper, the return of a step is a sum over past rewards: Rₜ = γ Rₜ₋₁ + rₜ, starting with 0 in each episode.
    The mean is not subtracted from rewards, because that would change the optimal policy. Only training uses scaled
    rewards; evaluations report unscaled rewards.

    Args:
        gamma: γ, discount factor of one step.
        clip: largest absolute value of a scaled reward.
        ranks: processes that train together; the standard deviation is computed over all of them.
    """

    def __init__(self, gamma: float, clip: float, ranks: Ranks | None = None) -> None:
        self.gamma, self.clip, self.ranks = gamma, clip, ranks or SingleProcess()
        self.moments = RunningMoments(1)
        self.running = torch.zeros(0, dtype=torch.float64)  # [B], discounted returns of the unfinished episodes

    def __call__(self, step: TransitionTargets) -> Tensor:
        """Update the standard deviation with transitions [T, B], and return their scaled rewards, [T, B] float32."""
        reward = step.reward.double().cpu()
        done, counts = step.done.cpu(), step.weight.cpu() > 0
        running = self.running if len(self.running) else torch.zeros_like(reward[0])
        returns = []
        for reward_t, done_t, counts_t in zip(reward, done, counts, strict=True):
            running = torch.where(counts_t, self.gamma * running + reward_t, running)
            returns.append(running)
            # A reset also sets the sum to 0: an episode that is truncated at a checkpoint has no step with `done`.
            running = torch.where(done_t | ~counts_t, torch.zeros_like(running), running)
        self.running = running
        self.moments.update(torch.stack(returns)[counts].unsqueeze(-1), self.ranks.sum)
        scaled = (reward / self.moments.scale()).clamp(-self.clip, self.clip)
        return scaled.float().to(step.reward.device)

    def scale(self, batch: Batch) -> Batch:
        """Update the standard deviation with a batch [T, B], and return the batch with scaled rewards.

        As in every batch, `reward[t]` is the reward of the transition that ends in row t. `reward[0]` is not scaled,
        because its transition starts before the batch.
        """
        scaled = self(transitions(batch))
        rows = torch.cat([batch.steps.reward[:1], scaled[:-1]])
        return replace(batch, steps=replace(batch.steps, reward=rows), last=replace(batch.last, reward=scaled[-1]))

    def state_dict(self) -> State:
        """Return the running mean and variance, and the discounted returns of this rank's unfinished episodes."""
        return {"moments": self.moments.state_dict(), "running": self.running}

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        self.moments.load_state_dict(state["moments"])
        self.running = state["running"].clone()

"""Noise in the actions of who collects, beside the policy that is judged and served."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import disturb
from rlcore.nn.world_agent import WorldAgent


class Amount(nn.Module):
    """Amount of noise, as a buffer: acting reads it anew after every update."""

    value: Tensor

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(amount))


class Explorer(nn.Module):
    """An agent whose actions get noise (arXiv:1912.01603, section 6; its code's `additive_gaussian`, `epsilon_greedy`).

    Continuous: normal noise of so much std, clipped into -1 to 1. Discrete: with that chance, drawn for each
    environment and sub-action, a uniform one. What the agent remembers as its action is the one with noise.

    Args:
        agent: whose policy is followed.
        amount: of noise.
    """

    def __init__(self, agent: WorldAgent, amount: float) -> None:
        super().__init__()
        self.agent, self.amount, self.keys = agent, Amount(amount), agent.keys

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        """The agent's carry at an episode's start, for so many environments."""
        return self.agent.initial(batch_size)

    def act(
        self,
        carry: dict[str, Tensor],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Act as the agent does, with noise unless there is no stream of it or the choice is greedy."""
        carry, action, extras = self.agent.act(carry, obs, is_first, rng, greedy)
        if rng is not None and not greedy:
            action = self.disturb(action, rng, obs)
            carry = carry | {"action": self.agent.actor.flat(action)}
        return carry, action, extras

    def disturb(self, action: Tensor, rng: Noise, obs: dict[str, Tensor]) -> Tensor:
        """Actions [B, A] with noise; discrete ones stay within the masks among `obs`, where the agent has some."""
        actor, amount = self.agent.actor, self.amount.value
        if actor.action.continuous:
            return (action + amount * rng.normal(*action.shape)).clamp(-1, 1)
        share = rng.uniform(*action.shape)
        if self.agent.masks:
            return disturb(self.agent.spec, action, obs, share, rng.uniform(*action.shape) < amount)
        pairs = zip(share.split(1, -1), actor.action.nvec, strict=True)
        other = torch.cat([(part * n).long().clamp(max=n - 1) for part, n in pairs], -1)
        return torch.where(rng.uniform(*action.shape) < amount, other, action)

    def to_env(self, action: Tensor) -> Tensor:
        """Actions [B, A] in the environment's form and bounds, as the agent brings them there."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Actions of the environment as the agent says them, [B, A]."""
        return self.agent.from_env(action)

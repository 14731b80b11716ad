"""Exploration noise, added to actions during collection; evaluation and serving select actions without noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.world_agent import WorldAgent
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import disturb


class Amount(nn.Module):
    """Amount of exploration noise. It is a module buffer, because it changes during training."""

    value: Tensor

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(amount))


class Explorer(nn.Module):
    """Agent whose actions get exploration noise (arXiv:1912.01603, section 6).

    Normal noise with standard deviation `amount` is added to continuous actions, which are then clipped to [-1, 1]
    (`additive_gaussian` in the authors' code). Each discrete sub-action is replaced by a uniformly random one with
    probability `amount` (`epsilon_greedy`). The carry, which is the agent's state between time steps, contains the
    action with noise.

    Args:
        agent: agent that selects the actions.
        amount: initial amount of noise: a standard deviation or a probability.
    """

    def __init__(self, agent: WorldAgent, amount: float) -> None:
        super().__init__()
        self.agent, self.amount, self.keys = agent, Amount(amount), agent.keys

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        """Return the agent's initial carry for `batch_size` environments."""
        return self.agent.initial(batch_size)

    def act(
        self,
        carry: dict[str, Tensor],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Select actions with the agent, and add noise unless `rng` is None or `greedy` is true.

        Return the next carry, actions [B, A], and an empty dict (other agents return extra outputs in it). `obs` maps
        observation keys to [B, ...].
        """
        carry, action, extras = self.agent.act(carry, obs, is_first, rng, greedy)
        if rng is not None and not greedy:
            action = self.disturb(action, rng, obs)
            carry = carry | {"action": self.agent.actor.flat(action)}
        return carry, action, extras

    def disturb(self, action: Tensor, rng: Noise, obs: dict[str, Tensor]) -> Tensor:
        """Add exploration noise to actions [B, A].

        If the agent uses action masks, random discrete actions obey the masks in `obs`.
        """
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
        """Convert the agent's actions [B, A] to the environment's actions [B, *shape], within the action bounds."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.agent.from_env(action)

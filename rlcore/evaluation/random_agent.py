"""Random agent, the baseline for trained agents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlcore.envs.masks import draw_allowed
from rlcore.functional.noise import Noise
from rlcore.spec import EnvSpec


class RandomAgent:
    """Agent with uniformly random actions.

    Unbounded elements of a Box have no uniform distribution. They are sampled as in Gymnasium: from a normal
    distribution if both bounds are infinite, and from an exponential distribution if one bound is infinite.

    Args:
        spec: spec of the environment.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        action = spec.action
        self.parts = [RandomAgent(EnvSpec(spec.id, {}, part)) for part in action.parts]
        self.low, self.high = np.asarray(action.low, np.float64), np.asarray(action.high, np.float64)

    def initial(self, batch_size: int) -> tuple[()]:
        """Return an empty carry, because this agent has no recurrent state."""
        return ()

    def act(
        self,
        carry: tuple[()],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """Draw random actions [B, A]; A is the number of sub-actions, or the number of all elements of a Box.

        A composite action has the sum of these numbers over its parts.

        Discrete actions are drawn from the choices that the action masks in `obs` allow.
        """
        assert rng is not None
        batch, spec, draw, keys = len(is_first), self.spec.action, rng.host, self.spec.mask_keys
        allowed = None
        if keys:
            allowed = torch.from_numpy(draw_allowed(self.spec, {key: obs[key].cpu().numpy() for key in keys}, draw))
        if self.parts:
            chosen = () if allowed is None else allowed.split([len(part.nvec) for part in spec.parts if part.nvec], -1)
            left = iter(chosen)
            drawn = [
                next(left) if chosen and part.spec.action.nvec else part.act(carry, obs, is_first, rng)[1]
                for part in self.parts
            ]
            return (), torch.cat([part.double() for part in drawn], -1), {}
        if allowed is not None:
            return (), allowed, {}
        if not spec.continuous:
            return (), torch.from_numpy(draw.integers(0, spec.nvec, (batch, spec.size))), {}
        below, above = np.isfinite(self.low), np.isfinite(self.high)
        shape = (batch, self.low.size)
        uniform = np.where(below, self.low, 0) + draw.random(shape) * np.where(below & above, self.high - self.low, 0)
        tail = draw.standard_exponential(shape)
        one_sided = np.where(below, np.where(below, self.low, 0) + tail, np.where(above, self.high, 0) - tail)
        free = np.where(below | above, one_sided, draw.standard_normal(shape))
        return (), torch.from_numpy(np.where(below & above, uniform, free)), {}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, A] to the environment's format [B, *shape].

        Discrete actions of this agent are counted from 0; in the environment, they start at `start`, which is added.
        """
        spec = self.spec.action
        if self.parts:
            pieces = action.split([part.spec.action.width for part in self.parts], -1)
            taken = [
                part.to_env(piece).reshape(len(action), -1) for part, piece in zip(self.parts, pieces, strict=True)
            ]
            return torch.cat([part.double() for part in taken], -1)
        values = action if spec.continuous else action + torch.tensor(spec.start)
        return values.to(getattr(torch, spec.dtype)).view(-1, *spec.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions from the environment's format [B, *shape] to this agent's format [B, A]."""
        values = action.reshape(len(action), -1)
        if self.parts:
            pieces = values.split([part.spec.action.width for part in self.parts], -1)
            rows = [part.from_env(piece).double() for part, piece in zip(self.parts, pieces, strict=True)]
            return torch.cat(rows, -1)
        return values.double() if self.spec.action.continuous else values.long() - torch.tensor(self.spec.action.start)

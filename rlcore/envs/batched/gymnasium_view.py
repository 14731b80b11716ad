"""One copy of a batched environment as an environment of Gymnasium: for its spaces, single episodes and videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from rlcore.envs.batched.env import BatchedEnv, Obs
from rlcore.envs.batched.parameters import Parameters, parse
from rlcore.envs.batched.random import BatchedRandom, episode_key
from rlcore.errors import UserError


class GymnasiumView(gymnasium.Env[Any, Any]):
    """Gymnasium's interface of a batched environment with one copy on the CPU.

    Args:
        env: batched environment with B = 1.
    """

    def __init__(self, env: BatchedEnv) -> None:
        self.env, self.observation_space, self.action_space = env, env.observation_space, env.action_space
        self._seed, self._episode = 0, -1
        self.endless, self.parameters = env.endless, Parameters(env.Config(), {})
        self.mask_bindings = env.mask_bindings

    def set_task(self, config: Mapping[str, Any], endless: bool | None, env_id: str) -> None:
        """Set the values of `env.config` and `env.endless`; raise UserError if one is invalid."""
        starts_itself = self.env.tier == "boundary"
        self.parameters = parse(self.env.Config, config, "env.config", env_id, starts_itself)
        if endless and starts_itself:
            raise UserError(
                f"env.endless=true: {env_id} starts its episodes itself, so they cannot be endless; remove the key"
            )
        self.endless = self.env.endless if endless is None else endless

    @torch.no_grad()
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed, the next one of the last seed."""
        super().reset(seed=seed)
        self._seed, self._episode = (self._seed, self._episode + 1) if seed is None else (int(seed), 0)
        base, episode, zero = (torch.tensor([value]) for value in (self._seed, self._episode, 0))
        self.env.random = BatchedRandom(episode_key(base, zero, episode), zero)
        self.env.config = self.parameters.draw(self.env.random, self.parameters.at(0, "cpu"))
        return _numpy(self.env.reset(self.env.config)), {}

    @torch.no_grad()
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        obs, reward, *ends = self.env.step(_tensors(action))
        terminated = bool(ends and not self.endless and ends[0][0])
        truncated = len(ends) > 1 and bool(ends[1][0])
        return _numpy(obs), float(reward[0]), terminated, truncated, {}

    def close(self) -> None:
        """Close the batched environment."""
        self.env.close()


def _tensors(action: Any) -> Any:
    """Convert the action of one copy, an array or a nested dict or tuple of arrays, to tensors [1, ...]."""
    if isinstance(action, dict):
        return {key: _tensors(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(map(_tensors, action))
    return torch.as_tensor(np.asarray(action))[None]


def _numpy(obs: Obs) -> Any:
    """Convert an observation of one copy, a tensor [1, ...] or a nested dict of them, to arrays."""
    return {key: _numpy(part) for key, part in obs.items()} if isinstance(obs, dict) else obs[0].numpy()

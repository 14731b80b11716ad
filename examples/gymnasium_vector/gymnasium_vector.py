"""Vectorized environments of Gymnasium as batched environments.

    shepherd train exp=ppo env=batched plugins=[gymnasium_vector] \
        env.wrapper._target_=gymnasium_vector.GymnasiumVector env.wrapper.env_id=CartPole-v1

The environments compute on the CPU and draw their start states from a common random generator. Their state cannot be
saved, so every scheduled checkpoint truncates the unfinished episodes. `env.wrapper` accepts the arguments of
`gymnasium.make_vec`, for example `env.wrapper.vectorization_mode=async`.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rlcore.envs.batched.env import BatchedEnv, Obs, Transition


class GymnasiumVector(BatchedEnv):
    """B environments that `gymnasium.make_vec(env_id, B, **arguments)` creates."""

    capturable, tier = False, "boundary"

    def __init__(self, num_envs: int, device: Any = "cpu", env_id: str = "CartPole-v1", **arguments: Any) -> None:
        super().__init__(num_envs, device)
        self.envs = gymnasium.make_vec(env_id, num_envs, **arguments)
        if self.envs.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
            raise ValueError(f"{env_id} must reset ended environments in the next step (AutoresetMode.NEXT_STEP)")
        self.observation_space, self.action_space = self.envs.single_observation_space, self.envs.single_action_space
        spec = self.envs.spec
        self.max_episode_steps = arguments.get("max_episode_steps", spec.max_episode_steps if spec else None)

    def reset(self, config: Any) -> Obs:
        """Start an episode in all environments; the seed also determines their later episodes."""
        obs, _ = self.envs.reset(seed=int(self.random.integers(2**31)[0]))
        return self._tensors(obs)

    def step(self, action: Tensor) -> Transition:
        """Step all environments; Gymnasium resets those whose episode has ended."""
        obs, reward, terminated, truncated, _ = self.envs.step(action.cpu().numpy())
        return self._tensors(obs), *(self._tensors(part) for part in (reward.astype(np.float32), terminated, truncated))

    def close(self) -> None:
        """End the processes of the environments."""
        self.envs.close()

    def _tensors(self, part: Any) -> Any:
        if isinstance(part, dict):
            return {key: self._tensors(value) for key, value in part.items()}
        return torch.tensor(part, device=self.device)

"""Tasks of rl8 1.0.0 (theOGognf/rl8) as batched environments: its two dummies, and three tasks of its examples.

They have rl8's observations, actions, rewards, start states and limits, and their episodes have no end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched import classic_control
from rlcore.envs.batched.env import BatchedEnv, Transition


class DiscreteDummy(BatchedEnv):
    """DiscreteDummyEnv: move a point by 1 to the left (0) or right (1); the reward is minus its distance from 0."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    endless = True

    @dataclass(frozen=True)
    class Config:
        """Largest distance from 0 at the start."""

        bounds: float = 100.0

    def reset(self, config: Any) -> Tensor:
        """Draw the position from [-bounds, bounds)."""
        return self._at(self.random.uniform(-config.bounds, config.bounds))

    def step(self, action: Tensor) -> Transition:
        """Move the point."""
        return self._moved(2 * action - 1)

    def _moved(self, by: Tensor) -> Transition:
        obs = self._at(self.state["position"] + by)
        return obs, -self.state["position"].abs()

    def _at(self, position: Tensor) -> Tensor:
        self.state = {"position": position}
        return position[:, None]


class ContinuousDummy(DiscreteDummy):
    """ContinuousDummyEnv: the same task, in which the action is the distance by which the point moves."""

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action: Tensor) -> Transition:
        """Move the point."""
        return self._moved(action[:, 0])


class CartPole(classic_control.CartPole):
    """rl8's CartPole: a cart that is pushed to the left (0), not at all (1) or to the right (2).

    The reward is minus the distance from the upright position at rest in the middle: |x| + |ẋ| + |cos θ - 1| + |sin θ|
    + |θ̇|.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps = 128
    endless = True

    @dataclass(frozen=True)
    class Config(classic_control.CartPole.Config):
        """Parameters of CartPole, with the force of this task; rl8's name is force_mag."""

        force: float = 5.0

    def reset(self, config: Any) -> Tensor:
        """Draw position, velocity, angle and angular velocity from a normal distribution with deviation 0.01."""
        values = 0.01 * self.random.normal(4)
        self.state = {"values": values}
        return self._seen(values)

    def step(self, action: Tensor) -> Transition:
        """Integrate one step with Euler's method."""
        obs = self._seen(self._move((action - 1) * self.config.force))
        position, velocity, _, sin, spin = obs.abs().unbind(1)
        return obs, -((1 - obs[:, 2]) + sin + position + velocity + spin)

    def _seen(self, values: Tensor) -> Tensor:
        position, velocity, angle, spin = values.unbind(1)
        return torch.stack([position, velocity, angle.cos(), angle.sin(), spin], 1).float()


class MountainCar(classic_control.MountainCar):
    """rl8's MountainCar: the reward is minus the distance to the goal, and 1 beyond it if the car does not roll back.

    rl8's names of `goal` and `force` are goal_position and force_mag.
    """

    max_episode_steps = 512
    endless = True

    def reset(self, config: Any) -> Tensor:
        """Draw the position from a normal distribution around -0.5, and the velocity around 0, with deviation 0.05."""
        position, velocity = (0.05 * self.random.normal(2)).unbind(1)
        self.state = {"position": position - 0.5, "velocity": velocity}
        return self._obs()

    def step(self, action: Tensor) -> Transition:
        """Accelerate by -1, 0 or 1."""
        reached = self._move(self.config.force * (action - 1).to(self.state["position"].dtype))
        distance = (self.state["position"] - self.config.goal).abs()
        return self._obs(), torch.where(reached, 1.0, -distance)


class Pendulum(classic_control.Pendulum):
    """rl8's Pendulum: Pendulum-v1 with any torque as an action, which is clipped to [-2, 2], and a limit of 512 steps.

    rl8's names of `gravity`, `length` and `mass` are g, l and m.
    """

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    max_episode_steps = 512
    endless = True

"""Classic control tasks of Gymnasium as batched environments, with equal dynamics, rewards and limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched.env import BatchedEnv, Transition


class CartPole(BatchedEnv):
    """Gymnasium's CartPole-v1 (Barto, Sutton and Anderson 1983): push a cart so that the pole on it stays upright."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)
    max_episode_steps = 500

    gravity, cart_mass, pole_mass, half_length, force, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    place_limit, angle_limit = 2.4, 12 * 2 * math.pi / 360

    def reset(self, config: Any) -> Tensor:
        """Draw place, speed, angle and angular speed from [-0.05, 0.05)."""
        values = self.random.uniform(-0.05, 0.05, 4)
        self.state = {"values": values}
        return values

    def step(self, action: Tensor) -> Transition:
        """Push to the left (0) or to the right (1); integrate with Euler's method."""
        x, speed, angle, turning = self.state["values"].unbind(1)
        total, moment = self.cart_mass + self.pole_mass, self.pole_mass * self.half_length
        push = torch.where(action == 1, self.force, -self.force).to(x.dtype)
        cos, sin = angle.cos(), angle.sin()
        middle = (push + moment * turning.square() * sin) / total
        inertia = self.half_length * (4.0 / 3.0 - self.pole_mass * cos.square() / total)
        turning_change = (self.gravity * sin - cos * middle) / inertia
        change = middle - moment * turning_change * cos / total
        values = torch.stack(
            [
                x + self.tau * speed,
                speed + self.tau * change,
                angle + self.tau * turning,
                turning + self.tau * turning_change,
            ],
            1,
        )
        self.state = {"values": values}
        fallen = (values[:, 0].abs() > self.place_limit) | (values[:, 2].abs() > self.angle_limit)
        return values.float(), torch.ones_like(x, dtype=torch.float32), fallen

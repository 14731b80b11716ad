"""Corridor, a small environment in a plugin (docs/your_own_environment.md).

cd examples/corridor
SHEPHERD_SEARCH_PATH=conf shepherd train exp=ppo_corridor "plugins=[corridor]"
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Corridor with `length` cells: each step costs 0.01; the last cell gives a reward of 1 and ends the episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  Gymnasium's form

    def __init__(self, length: int = 8, limit: int = 50, render_mode: str | None = None) -> None:
        self.length, self.limit, self.render_mode = length, limit, render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)  # the only random numbers are from self.np_random, so a run resumes exactly
        self.place, self.steps = int(self.np_random.integers(self.length - 1)), 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        self.place, self.steps = max(0, self.place + (1 if action else -1)), self.steps + 1
        terminated = self.place == self.length - 1
        return self._obs(), float(terminated) - 0.01, terminated, self.steps >= self.limit, {}

    def render(self) -> Any:
        image = np.full((32, 32 * self.length, 3), 255, np.uint8)
        image[:, 32 * self.place : 32 * (self.place + 1)] = (200, 60, 60)
        return image

    def _obs(self) -> np.ndarray:
        return np.array([self.place / (self.length - 1), self.steps / self.limit], np.float32)

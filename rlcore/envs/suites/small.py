"""Suite of two small tasks that agents learn within minutes on a CPU.

PointMass has vector observations; it can also be rendered. Crosshair has image observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.suites.suite import Suite

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # (row, column): up, down, left, right


class PointMass(gymnasium.Env[np.ndarray, np.ndarray]):
    """Task in which the agent pushes a mass in the plane to the center and keeps it at the center.

    The mass starts at rest on a circle of radius 1. A step computes v ← 0.8 v + 0.2 force and x ← x + 0.2 v, with a
    force in [-1, 1]²; the position x is clipped to ±1.5. The reward is exp(-4 d²) at distance d from the center. The
    return of an episode is therefore less than `n_steps`.

    Args:
        n_steps: the episode is truncated after this number of actions.
        render_mode: None, or "rgb_array".

    Attributes:
        metadata: render modes and frame rate, as in Gymnasium.
        observation_space: position and velocity, [4] float32.
        action_space: force, [2] float32.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own form
    observation_space = spaces.Box(-1.5, 1.5, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, n_steps: int = 40, render_mode: str | None = None) -> None:
        self.n_steps, self.render_mode = n_steps, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode at a random position on the circle."""
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.count, self.place, self.velocity = 0, np.array([np.cos(angle), np.sin(angle)]), np.zeros(2)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply a force; it is clipped to [-1, 1]."""
        force = np.clip(np.asarray(action, np.float64), -1, 1).round(6)  # ignore the last bits of an action
        self.velocity = 0.8 * self.velocity + 0.2 * force
        self.place = np.clip(self.place + 0.2 * self.velocity, -1.5, 1.5)
        self.count += 1
        reward = float(np.exp(-4 * np.square(self.place).sum()))
        return self._obs(), reward, False, self.count == self.n_steps, {}

    def render(self) -> Any:
        """Return an image [64, 64, 3] uint8, with the mass as a red dot and the center as a green dot."""
        middles = np.stack([self.place, np.zeros(2)], 1)[..., None]  # [2, dots, 1]
        along = np.exp(-np.square(31.5 + 20 * middles - np.arange(64)) / 18)
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[..., :2] = (255 * along[1].T[:, None] * along[0].T).round()  # the first coordinate is horizontal
        return picture

    def _obs(self) -> np.ndarray:
        return np.concatenate([self.place, self.velocity]).astype(np.float32)


class Crosshair(gymnasium.Env[np.ndarray, np.int64]):
    """Task in which the agent moves a red crosshair onto a green one, as often as possible; observations are images.

    Each crosshair is a row and a column of the image in its color. The agent moves the red crosshair up, down, left or
    right. If both are in the same cell, the reward is 1, and the green crosshair moves to another cell.

    Args:
        cells: cells per side of the board, 2 to 8.
        n_steps: the episode is truncated after this number of actions.
        render_mode: None, or "rgb_array".

    Attributes:
        metadata: render modes and frame rate, as in Gymnasium.
        observation_space: the image, [64, 64, 3] uint8.
        action_space: the four directions.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - Gymnasium's own form
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(len(MOVES))

    def __init__(self, cells: int = 4, n_steps: int = 32, render_mode: str | None = None) -> None:
        if not 2 <= cells <= 8:
            raise ValueError(f"cells={cells}: must be from 2 to 8")
        self.cells, self.n_steps, self.render_mode = cells, n_steps, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with both crosshairs in different random cells."""
        super().reset(seed=seed)
        self.count, self.place = 0, self.np_random.integers(self.cells, size=2)
        self._hide()
        return self.render(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the red crosshair by one cell; at the edge of the board it does not move."""
        self.place = np.clip(self.place + MOVES[action], 0, self.cells - 1)
        self.count += 1
        found = bool((self.place == self.goal).all())
        if found:
            self._hide()
        return self.render(), float(found), False, self.count == self.n_steps, {}

    def render(self) -> Any:
        """Return the image, which is also the observation; the lines are a quarter of a cell wide."""
        picture, cell = np.zeros((64, 64, 3), np.uint8), 64 // self.cells
        for channel, (row, column) in enumerate((self.place, self.goal)):
            first, second = (slice(cell * at + cell * 3 // 8, cell * at + cell * 5 // 8) for at in (row, column))
            picture[first, :, channel] = picture[:, second, channel] = 255
        return picture

    def _hide(self) -> None:
        """Move the green crosshair to a random cell that differs from the cell of the red one."""
        cell = int(self.np_random.integers(self.cells**2 - 1))
        cell += cell >= self.place[0] * self.cells + self.place[1]
        self.goal = np.array(divmod(cell, self.cells))


CLASSES: Mapping[str, type[gymnasium.Env[Any, Any]]] = {"point_mass": PointMass, "crosshair": Crosshair}


class SmallSuite(Suite):
    """Suite of the two small tasks, PointMass and Crosshair."""

    name = "small"
    note = "push a mass, align crosshairs: learned within minutes"

    def ids(self) -> Sequence[str]:
        """Return the ids of the two tasks."""
        return tuple(CLASSES)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment of the id's class."""
        every = {**arguments, "render_mode": render_mode}
        return CLASSES[env_id](**every)

    def source(self, env_id: str) -> Any:
        """Return the environment class of an id."""
        return CLASSES[env_id]

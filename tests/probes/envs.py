"""Tiny environments whose values and best actions are known exactly. Importing this registers them with Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Endless(gymnasium.Env):
    """Reward 1 at every step, nothing to see, cut after 10 steps: V = 1/(1-γ) everywhere."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.age += 1
        return np.ones(1, np.float32), 1.0, False, self.age == 10, {}


class Countdown(gymnasium.Env):
    """Reward 1 at every step, over after 5, the age in sight: V(t) = (1-γ^(5-t))/(1-γ)."""

    observation_space = spaces.Discrete(6)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return 0, {}

    def step(self, action: int) -> Any:
        self.age += 1
        return self.age, 1.0, self.age == 5, False, {}


class Windfall(gymnasium.Env):
    """Reward 100 right after the start, then nothing until the cut: V(start) = 100, V(later) = 0."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return 0, {}

    def step(self, action: int) -> Any:
        self.age += 1
        return 1, 100.0 if self.age == 1 else 0.0, False, self.age == 4, {}


class Generous(gymnasium.Env):
    """Pays the action itself, from a Box that lies off zero; refuses what is outside of it."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(2.0, 5.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        return np.ones(1, np.float32), float(action.mean()), True, False, {}


# The action that a signal of 0 and of 1 asks for, in every discrete space there is.
ACTION_SPACES: dict[str, tuple[spaces.Space, tuple[Any, Any]]] = {
    "discrete": (spaces.Discrete(3, start=1), (1, 3)),
    "multi_discrete": (spaces.MultiDiscrete([2, 3], start=[1, -1]), ([1, 1], [2, -1])),
    "multi_binary": (spaces.MultiBinary(3), ([1, 0, 1], [0, 0, 1])),
}
OBS_SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1, 1, (1, 2), np.float32),
    "discrete": spaces.Discrete(2, start=5),
    "dict": spaces.Dict({"noise": spaces.Box(-1, 1, (3,), np.float32), "signal": spaces.Discrete(2)}),
}


class Signal(gymnasium.Env):
    """One step an episode: pays the share of sub-actions that are what the signal asks for.

    Args:
        action: key of `ACTION_SPACES`.
        obs: key of `OBS_SPACES`.
    """

    def __init__(self, action: str = "discrete", obs: str = "box") -> None:
        self.action_space, self.wanted = ACTION_SPACES[action]
        self.observation_space = OBS_SPACES[obs]
        self.form = obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.signal = int(self.np_random.integers(2))
        return self.shown(), {}

    def shown(self) -> Any:
        if self.form == "box":
            return np.full((1, 2), 2 * self.signal - 1, np.float32)
        if self.form == "discrete":
            return 5 + self.signal
        return {"noise": self.np_random.uniform(-1, 1, 3).astype(np.float32), "signal": self.signal}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        reward = float(np.mean(np.asarray(action) == np.asarray(self.wanted[self.signal])))
        return self.shown(), reward, True, False, {}


for kind in (Endless, Countdown, Windfall, Generous, Signal):
    gymnasium.register(f"known/{kind.__name__}-v0", entry_point=kind)

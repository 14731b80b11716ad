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


class Dot(gymnasium.Env):
    """A bright dot on a dark picture of 16 × 16 pixels, to be pushed to the middle and kept there.

    Pays 1 less the distance from the middle, of which the edge is 1 away, at each of 10 steps. A push moves it by a
    quarter of that at most. Where it begins is uniform over the picture.

    Args:
        goal: not to the middle, but to a place that the vector `state` says.
    """

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, goal: bool = False) -> None:
        picture, self.goal = spaces.Box(0, 255, (16, 16, 1), np.uint8), goal
        both = {"rgb": picture, "state": spaces.Box(-1, 1, (2,), np.float32)}
        self.observation_space = spaces.Dict(both) if goal else picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age, self.place = 0, self.np_random.uniform(-1, 1, 2)
        self.wanted = self.np_random.uniform(-1, 1, 2).astype(np.float32) if self.goal else np.zeros(2, np.float32)
        return self.shown(), {}

    def shown(self) -> Any:
        """Each pixel the brighter, the nearer the dot is."""
        along = np.exp(-np.square(7.5 + 6.5 * self.place[:, None] - np.arange(16)) / 3)  # [2, 16]
        picture = (255 * along[0][:, None] * along[1]).astype(np.uint8)[..., None]
        return {"rgb": picture, "state": self.wanted} if self.goal else picture

    def step(self, action: np.ndarray) -> Any:
        self.age += 1
        self.place = np.clip(self.place + action / 4, -1, 1).round(3)  # the last bits of an action change nothing
        return self.shown(), 1.0 - float(np.abs(self.place - self.wanted).max()), False, self.age == 10, {}


class Picture(gymnasium.Env):
    """Pays half for what the image asks for, half for what the vector does, at every step anew.

    Args:
        layout: where the channels of the image are, "first" or "last".
        length: actions of an episode.
    """

    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, layout: str = "last", length: int = 1) -> None:
        self.length = length
        self.shape = (3, 36, 36) if layout == "first" else (36, 36, 3)
        image, vector = spaces.Box(0, 255, self.shape, np.uint8), spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Dict({"image": image, "vector": vector})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return self.shown(), {}

    def shown(self) -> Any:
        """Noise, the left half of it brighter, or the right one; the sign."""
        self.wanted = self.np_random.integers(0, 2, 2)
        image = self.np_random.integers(0, 128, self.shape, np.uint8)
        columns = image if self.shape[0] == 3 else np.moveaxis(image, -1, 0)
        columns[..., slice(0, 18) if self.wanted[0] else slice(18, 36)] += 100
        return {"image": image, "vector": np.float32([2 * self.wanted[1] - 1])}

    def step(self, action: Any) -> Any:
        self.age += 1
        reward = float(np.mean(np.asarray(action) == self.wanted))
        return self.shown(), reward, self.age == self.length, False, {}


class Flash(gymnasium.Env):
    """An image that is lit at first or is not, dark afterwards: the second action is paid where it tells which."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age, self.lit = 0, int(self.np_random.integers(2))
        return np.full((36, 36, 1), 200 * self.lit, np.uint8), {}

    def step(self, action: int) -> Any:
        self.age += 1
        reward = float(self.age == 2 and action == self.lit)
        return np.zeros((36, 36, 1), np.uint8), reward, self.age == 2, False, {}


class Recall(gymnasium.Env):
    """A cue, shown once: the answer to the last of `length` observations is paid 1 where it tells the cue, -1 else.

    An agent that sees the newest observation alone earns 0, whatever it does.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age, self.cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: int) -> Any:
        self.age += 1
        ended = self.age == self.length
        reward = (1.0 if action == self.cue else -1.0) if ended else 0.0
        return np.array([0, self.age == self.length - 1], np.float32), reward, ended, False, {}


for kind in (Endless, Countdown, Windfall, Generous, Signal, Dot, Picture, Flash, Recall):
    gymnasium.register(f"known/{kind.__name__}-v0", entry_point=kind)

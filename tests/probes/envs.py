"""Tiny environments whose values and best actions are known exactly. Importing this registers them with Gymnasium."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Endless(gymnasium.Env):
    """Reward 1 at every step, no observation, truncated after 10 steps: V = 1/(1-γ) everywhere."""

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
    """Reward 1 at every step, terminated after 5, the age is observed: V(t) = (1-γ^(5-t))/(1-γ)."""

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
    """Reward 100 after the first step, then 0 until truncation: V(start) = 100, V(later) = 0."""

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
    """Reward is the action itself, from a Box that does not contain 0; other actions are refused."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(2.0, 5.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), f"{action!r} is outside {self.action_space}"
        return np.ones(1, np.float32), float(action.mean()), True, False, {}


# The right action for a signal of 0 and of 1, in every kind of discrete space.
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
    """One step per episode: the reward is the share of sub-actions that the signal asks for.

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
    """Bright dot on a dark image of 16 × 16 pixels, to be pushed to the center and kept there.

    The reward is 1 minus the distance from the center, which is 1 at the edge, at each of 10 steps. A push moves it
    by at most a quarter of that distance. The start is uniform over the image.

    Args:
        goal: the target is not the center, but a place that the vector `state` gives.
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
        """Return the image: the nearer the dot, the brighter a pixel."""
        along = np.exp(-np.square(7.5 + 6.5 * self.place[:, None] - np.arange(16)) / 3)  # [2, 16]
        picture = (255 * along[0][:, None] * along[1]).astype(np.uint8)[..., None]
        return {"rgb": picture, "state": self.wanted} if self.goal else picture

    def step(self, action: np.ndarray) -> Any:
        self.age += 1
        self.place = np.clip(self.place + action / 4, -1, 1).round(3)  # the last bits of an action have no effect
        return self.shown(), 1.0 - float(np.abs(self.place - self.wanted).max()), False, self.age == 10, {}


class Picture(gymnasium.Env):
    """Half of the reward is for the action that the image asks for, half for the vector, new in every step.

    Args:
        layout: axis of the image's channels, "first" or "last".
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
        """Return noise whose left or right half is brighter, and the sign."""
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
    """An image is lit at first or not, and dark afterwards: the second action is rewarded if it matches."""

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
    """A cue, shown once: the answer to the last of `length` observations is rewarded with 1 if it matches, else -1.

    An agent that sees only the newest observation earns 0.
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


class Doors(gymnasium.Env):
    """Thirty doors, of which three are open in each step, as the mask says; the third of the wall is rewarded with 1.

    A random agent earns 3.3 of 10 with the mask, and 0.3 without it.
    """

    observation_space = spaces.Dict(
        {"state": spaces.Box(0, 1, (13,), np.float32), "action_mask": spaces.MultiBinary(30)}
    )
    action_space = spaces.Discrete(30)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return self.show(), {}

    def step(self, action: int) -> Any:
        self.age += 1
        reward = float(action == self.column + 10 * self.third)
        return self.show(), reward, self.age == 10, False, {}

    def show(self) -> dict[str, np.ndarray]:
        self.column, self.third = int(self.np_random.integers(10)), int(self.np_random.integers(3))
        state, mask = np.zeros(13, np.float32), np.zeros(30, np.int8)
        state[self.column] = state[10 + self.third] = mask[self.column :: 10] = 1
        return {"state": state, "action_mask": mask}


class Rank(Countdown):
    """`info` has the rank of the training process, and the number of the step: 1 to 5."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"rank": int(os.environ.get("LOCAL_RANK", "0")), "age": self.age}


for kind in (Endless, Countdown, Windfall, Generous, Signal, Dot, Picture, Flash, Recall, Doors, Rank):
    gymnasium.register(f"known/{kind.__name__}-v0", entry_point=kind)


class CompositeActions(gymnasium.Env[np.ndarray, Any]):
    """Nested action space with all kinds of parts. The reward is 1 if the action fits the observation.

    The observation is one number. `step` raises if an action is not an element of the action space.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        arm = spaces.Tuple(
            (spaces.Box(-1.0, np.array([2.0, -1.0, 3.0], np.float32), (3,), np.float32), spaces.Discrete(3, start=5))
        )
        self.action_space = spaces.Dict(
            {"arm": arm, "keys": spaces.MultiDiscrete([2, 4]), "lamps": spaces.MultiBinary(2)}
        )
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.seen = 0, float(self.np_random.integers(2))
        return np.array([self.seen], np.float32), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not an action of {self.action_space}")
        (box, digit), keys, lamps = action["arm"], action["keys"], action["lamps"]
        reward = float(digit == 5 + self.seen) + float(keys[1] == 2 * self.seen) + float(lamps[0] == self.seen)
        reward += 1 - min(1.0, abs(float(box[0]) - self.seen))
        self.steps, self.seen = self.steps + 1, float(self.np_random.integers(2))
        return np.array([self.seen], np.float32), reward, False, self.steps >= 8, {}

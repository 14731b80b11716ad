"""Small environments with known behaviour; importing this module registers them (also in workers: SHEPHERD_PLUGINS)."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observation [episode, step]; reward = 10 * episode + step; ends after `lengths[episode % len]` actions.

    `fault` happens at step `at` of episode `when`. Even episodes terminate, odd ones are truncated.
    """

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(-1.0, 100.0, (2,), np.float64)

    def __init__(self, render_mode=None, lengths=(3,), fault="", at=2, when=0):
        self.render_mode, self.lengths, self.fault, self.at, self.when = render_mode, tuple(lengths), fault, at, when
        self.episode, self.count, self.seeds, self.taken = -1, 0, [], []

    def obs(self):
        return np.array([self.episode, self.count], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        self.seeds.append(seed)
        return self.obs(), {}

    def step(self, action):
        self.count += 1
        self.taken.append(int(action))
        obs, reward = self.obs(), 10.0 * self.episode + self.count
        if self.fault and self.count == self.at and self.episode == self.when:
            obs, reward = self.misbehave(obs, reward)
        over = self.count >= self.lengths[self.episode % len(self.lengths)]
        return obs, reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def misbehave(self, obs, reward):
        if self.fault == "nan":
            return np.array([0.0, np.nan]), reward
        if self.fault == "huge":
            return np.array([0.0, 1e30]), reward
        if self.fault == "beyond":  # finite in float64, infinite in float32
            return np.array([0.0, 1e200]), reward
        if self.fault in ("reward_huge", "reward_huge_int"):
            return obs, 1e300 if self.fault == "reward_huge" else 10**400
        if self.fault == "shape":
            return np.zeros(1), reward
        if self.fault == "text":
            return np.array(["a", "b"]), reward
        if self.fault == "reward":
            return obs, float("inf")
        if self.fault == "reward_array":
            return obs, np.zeros(2)
        if self.fault == "print":
            print("hello from the engine", flush=True)
            return obs, reward
        if self.fault == "raise":
            raise RuntimeError("the engine said no\nand more")
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "spin":  # holds the interpreter lock for long stretches
            while True:
                sum(range(10**7))
        raise ValueError(self.fault)


class Spaces(gymnasium.Env):
    """Any observation and action space: observations are samples, actions must lie in the action space."""

    def __init__(self, render_mode=None, observation=None, action=None):
        self.render_mode = render_mode
        self.observation_space = observation if observation is not None else spaces.Box(-1, 1, (2,))
        self.action_space = action if action is not None else spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        return self.observation_space.sample(), 1.0, False, self.count >= 5, {}


class Engine:
    """An engine whose state cannot be read."""

    def __init__(self):
        self.value = 0.0


class Opaque(gymnasium.Env):
    """Random walk in an opaque engine. `stale`: values depend on the episode before; `wild`: on the instance too."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    instances = 0

    def __init__(self, render_mode=None, stale=False, wild=False):
        self.render_mode, self.stale, self.wild = render_mode, stale, wild
        self.engine = Engine()
        Opaque.instances += 1
        self.number = Opaque.instances
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if not self.stale:
            self.engine.value = 0.0
        self.engine.value += self.number if self.wild else 0
        self.count = 0
        return np.array([self.engine.value]), {}

    def step(self, action):
        self.engine.value += float(self.np_random.standard_normal()) + action
        self.count += 1
        return np.array([self.engine.value]), self.engine.value, False, self.count >= 20, {}


class Hidden(gymnasium.Env):
    """All attributes are plain, but the state is in a class variable, so snapshots look complete but are not."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    values: list = [0.0]  # noqa: RUF012  the trap itself

    def __init__(self, render_mode=None):
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        Hidden.values[0] = float(self.np_random.standard_normal())
        return np.array(Hidden.values), {}

    def step(self, action):
        Hidden.values[0] += action
        self.count += 1
        return np.array(Hidden.values), 0.0, False, self.count >= 10, {}


class Sticky(gymnasium.Env):
    """Repeats the last action with probability 0.1, and stores it outside of the environment's attributes."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 1, (1,), np.float64)
    before: ClassVar[weakref.WeakKeyDictionary] = weakref.WeakKeyDictionary()

    def __init__(self, render_mode=None):
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, Sticky.before[self] = 0, 0
        return np.zeros(1), {}

    def step(self, action):
        self.count += 1
        if self.np_random.random() >= 0.1:
            Sticky.before[self] = action
        return np.array([float(Sticky.before.setdefault(self, 0))]), 0.0, False, self.count >= 50, {}


class Flaky(gymnasium.Env):
    """Raises at every 29th step, counted over all instances."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 99, (1,), np.float32)
    steps = itertools.count(1)

    def __init__(self, render_mode=None):
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if next(Flaky.steps) % 29 == 0:
            raise RuntimeError("boom")
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, False, self.count == 9, {}


class Sequence(gymnasium.Env):
    """Observations that no agent can take."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"words": spaces.Text(5), "x": spaces.Box(0, 1, (1,))})

    def __init__(self, render_mode=None):
        self.render_mode = render_mode


class Masked(gymnasium.Env):
    """Each step allows one or two of four actions, as in `action_mask`, and raises at any other."""

    action_space = spaces.Discrete(4, start=1)
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(0, 99, (1,))})

    def __init__(self, render_mode=None):
        self.render_mode, self.count = render_mode, 0

    def obs(self):
        mask = np.zeros(4, np.int8)
        mask[[self.count % 4, (self.count + self.count // 4) % 4]] = 1
        return {"action_mask": mask, "x": np.array([self.count], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action):
        if not self.obs()["action_mask"][int(action) - 1]:
            raise ValueError(f"{action} is not allowed now")
        self.count += 1
        return self.obs(), 1.0, self.count >= 25, False, {}


class Camera(gymnasium.Env):
    """Image and vector observations, plain state, and actions with different bounds."""

    action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (80, 60, 3), np.uint8), "arm": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
    )

    def __init__(self, render_mode=None):
        self.render_mode, self.arm, self.count = render_mode, np.zeros(2, np.float32), 0

    def obs(self):
        pixels = self.np_random.integers(0, 256, (80, 60, 3), np.uint8)
        return {"camera": pixels, "arm": self.arm.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.arm, self.count = np.zeros(2, np.float32), 0
        return self.obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.arm, self.count = self.arm + action, self.count + 1
        return self.obs(), float(action[0]), self.count >= 17, False, {}


class OldForm(gymnasium.Env):
    """Returns values of the old Gym API from `old`: "reset", "reset without seed" or "step", or None from step."""

    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, old="reset", size=3):
        self.render_mode, self.old, self.observation_space = render_mode, old, spaces.Box(-1, 1, (size,))
        if old == "reset without seed":
            self.reset = lambda: self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        obs = self.observation_space.sample()
        return obs if self.old == "reset" else (obs, {})

    def step(self, action):
        return (self.observation_space.sample(), 1.0, False, {}) if self.old == "step" else None


class Closed(gymnasium.Env):
    """A point on a line that actions push; the first and the last element of an action have a single value."""

    action_space = spaces.Box(np.array([0.5, -2, 3], np.float32), np.array([0.5, 2, 3], np.float32))
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode, self.place, self.count = render_mode, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.count = float(self.np_random.normal()), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.place, self.count = self.place + float(action[1]), self.count + 1
        return np.array([self.place], np.float32), -abs(self.place), False, self.count >= 12, {}


class Informed(gymnasium.Env):
    """Episode e terminates after `len(infos[e % len(infos)])` steps, and step t returns the t-th mapping as info.

    The reset returns info, too; nothing may read it. `fails` is an episode whose second step raises. If `drawn` is
    True, e is random, so that an episode depends on its seed only.
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1.0, 100.0, (2,), np.float64)

    def __init__(self, render_mode=None, infos=(({},),), fails=-1, drawn=False):
        self.render_mode, self.infos, self.fails, self.drawn = render_mode, infos, fails, drawn
        self.episode, self.count = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.np_random.integers(3) if self.drawn else self.episode + 1, 0
        return np.array([self.episode, 0], np.float64), {"x": 1000.0, "done_well": True}

    def step(self, action):
        steps = self.infos[self.episode % len(self.infos)]
        info, self.count = steps[self.count], self.count + 1
        if self.episode == self.fails and self.count == 2:
            raise RuntimeError("the engine said no")
        return np.array([self.episode, self.count], np.float64), 1.0, self.count == len(steps), False, dict(info)


for _cls in (Counter, Spaces, Opaque, Hidden, Sticky, Flaky, Sequence, Masked, Camera, Closed, OldForm, Informed):
    _id = f"Probe/{_cls.__name__}-v0"
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"{__name__}:{_cls.__name__}")

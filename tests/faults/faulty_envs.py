"""An environment with faults chosen by the environment variable FAULT; importing this module registers it.

FAULT=kind:call:number[:rank], for example `nan:step:37`: from the 37th call of `step` in this process. The config does
not contain it, so a run with a fault can be resumed without it.
"""

from __future__ import annotations

import ctypes
import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

calls = {"step": 0, "reset": 0, "close": 0}


class Faulty(gymnasium.Env):
    """A noisy walk of 20 steps; its state can be saved."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1e3, 1e3, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode, self.place, self.count = render_mode, 0.0, 0

    def obs(self):
        return np.array([self.place, self.count], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.count = float(self.np_random.normal()), 0
        return apply_fault("reset", self.obs())

    def step(self, action):
        self.place += float(self.np_random.normal()) + (0.5 if action else -0.5)
        self.count += 1
        return apply_fault("step", self.obs(), -abs(self.place), False, self.count >= 20)

    def close(self):
        apply_fault("close", self.obs())


def apply_fault(call, obs, *rest):
    calls[call] += 1
    kind, where, number, rank = (os.environ.get("FAULT", "") + ":::").split(":")[:4]
    if rank in ("", os.environ.get("LOCAL_RANK")) and where == call and calls[call] >= int(number):
        if kind in ACTS:
            ACTS[kind]()
        obs = OBSERVATIONS.get(kind, lambda o: o)(obs)
        if rest:
            rest = (REWARDS.get(kind, rest[0]), FLAGS.get(kind, rest[1]), *rest[2:])
        if kind == "tuple":
            return (obs, *rest)
    return (obs, *rest, {})


def fail():
    raise RuntimeError("the engine said no\nand more")


def spin():
    while True:
        sum(range(10**6))


def freeze():
    """Block in C code while holding the GIL."""
    ctypes.PyDLL(None).sleep(600)


ACTS = {
    "raise": fail,
    "sleep": lambda: time.sleep(600),
    "spin": spin,
    "freeze": freeze,
    "exit": lambda: os._exit(7),
    "slow": lambda: time.sleep(0.05),
}
OBSERVATIONS = {
    "obs_nan": lambda obs: np.array([obs[0], np.nan], np.float32),
    "obs_inf": lambda obs: np.array([-np.inf, obs[1]], np.float32),
    "obs_shape": lambda obs: obs[:1],
    "obs_none": lambda obs: None,
    "obs_text": lambda obs: "here",
    "obs_texts": lambda obs: np.array(["a", "b"]),
    "obs_objects": lambda obs: np.array([None, obs[1]], object),
    "obs_complex": lambda obs: obs.astype(np.complex64),
    "obs_key": lambda obs: {"other": obs},
    "obs_huge": lambda obs: np.array([1e300, 0.0]),
}
REWARDS = {
    "reward_nan": float("nan"),
    "reward_inf": float("-inf"),
    "reward_huge": 1e39,  # finite, but not as float32
    "reward_none": None,
    "reward_text": "1.0",
    "reward_array": np.ones(2),
    "reward_complex": 1j,
}
FLAGS = {"flag_none": None, "flag_nan": float("nan"), "flag_text": "False", "flag_array": np.zeros(2, bool)}


class Shared(Faulty):
    """A walk whose place is shared by all instances of a process, so one instance does not determine the next step.

    Deterministic once every instance has been reset, unless `lottery` is true.
    """

    places: list[float] = [0.0]  # noqa: RUF012  the trap itself

    def __init__(self, render_mode=None, lottery=False):
        super().__init__(render_mode)
        self.lottery = lottery

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.count, Shared.places[0] = 0, float(self.np_random.normal())
        return self.obs(), {}

    def step(self, action):
        luck = int.from_bytes(os.urandom(1)) / 256 if self.lottery else float(self.np_random.normal())
        Shared.places[0] += luck + (0.5 if action else -0.5)
        self.count += 1
        return self.obs(), -abs(Shared.places[0]), False, self.count >= 17, {}

    def obs(self):
        return np.array([Shared.places[0], self.count], np.float32)


if "Shared-v0" not in gymnasium.registry:
    gymnasium.register("Shared-v0", entry_point=f"{__name__}:Shared")
if "Faulty-v0" not in gymnasium.registry:
    gymnasium.register("Faulty-v0", entry_point=f"{__name__}:Faulty")

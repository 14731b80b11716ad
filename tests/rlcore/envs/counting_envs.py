"""A vectorized environment without Gymnasium, whose observations contain environment, episode and age."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlcore.protocols import VectorEnv
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Episode, State, TimeStep


class CountingEnvs(VectorEnv):
    """Environment k observes [k, episode, age], with its age as reward, and ends after `lengths[k]` actions.

    Episodes of even k terminate, the others are truncated.

    Args:
        lengths: of the episodes of each environment.
    """

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = np.array(lengths)
        self.num_envs = len(lengths)
        self.spec = EnvSpec(
            "Counting-v0", {"state": ArraySpec((3,), "float32")}, ActionSpec("Discrete", (), "int64", (4,), (10,))
        )
        self.episode = np.full(self.num_envs, -1)
        self.age = np.zeros(self.num_envs, int)
        self.over = np.ones(self.num_envs, bool)
        self.finished: list[Episode] = []
        self.seen: list[np.ndarray] = []
        self.buffer = np.zeros((self.num_envs, 3), np.float32)  # overwritten at every step

    def reset(self) -> TimeStep:
        return self.step(np.zeros(self.num_envs, np.int64))

    def step(self, action: np.ndarray) -> TimeStep:
        self.seen.append(action.copy())
        is_first = self.over.copy()
        self.episode[is_first] += 1
        self.age = np.where(is_first, 0, self.age + 1)
        self.over = self.age == self.lengths
        for k in self.over.nonzero()[0]:
            total = float(self.age[k] * (self.age[k] + 1) / 2)
            self.finished.append(Episode(int(k), total + 100 * float(self.episode[k]), int(self.age[k])))
        self.buffer[:] = np.stack([np.arange(self.num_envs), self.episode, self.age], -1)
        even = np.arange(self.num_envs) % 2 == 0
        reward = self.age.astype(np.float32)
        return TimeStep({"state": self.buffer}, reward, self.over & even, self.over & ~even, is_first)

    def pop_episodes(self) -> list[Episode]:
        popped, self.finished = self.finished, []
        return popped

    def boundary(self) -> None:
        return None

    def state_dict(self) -> State:
        return {"episode": self.episode.copy(), "age": self.age.copy(), "over": self.over.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.episode, self.age, self.over = (state[name].copy() for name in ("episode", "age", "over"))

    def close(self) -> None:
        return None

"""Actions of running episodes, from which they are replayed if their state cannot be saved (tier "replay")."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from rlcore.envs.exact.stacked import stack, unstack
from rlcore.spec import ActionSpec
from rlcore.types import State


class ActionLog:
    """Actions of the running episode of each environment.

    Args:
        num_envs: B.
        action: spec of the actions.
    """

    def __init__(self, num_envs: int, action: ActionSpec) -> None:
        self._nothing = np.zeros((0, *action.shape), np.dtype(action.dtype))
        self._actions: list[list[np.ndarray]] = [[] for _ in range(num_envs)]

    def begin(self, index: int) -> None:
        """Begin an episode of an environment."""
        self._actions[index] = []

    def add(self, action: np.ndarray, ignored: Container[int]) -> None:
        """Add the actions [B, ...] of a step, except those of the environments in `ignored`, which were reset."""
        for index, taken in enumerate(action):
            if index not in ignored:
                self._actions[index].append(taken)

    def episode(self, index: int) -> np.ndarray:
        """Return the actions [n, ...] of the running episode of an environment."""
        return np.stack(self._actions[index]) if self._actions[index] else self._nothing

    def state_dict(self) -> State:
        """Return the actions of all environments, stacked to arrays."""
        return stack([{"actions": self.episode(index)} for index in range(len(self._actions))])

    def load_state_dict(self, state: State) -> None:
        """Restore the actions that `state_dict` returned."""
        self._actions = [list(np.array(lane["actions"])) for lane in unstack(state, len(self._actions))]

"""Episodes of vectorized environments: length and return of the running ones, and the ones that have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlcore.errors import RunError
from rlcore.types import Episodes, Rows, State


class EpisodeCounts:
    """Lengths and returns of the running episodes of B environments, and the ended episodes that were not read yet.

    Each step calls `step`, then `begin` if episodes begin in this step, then `add`. These methods create new arrays
    instead of changing them, so that they can be traced if the arrays are tensors. A reset of all environments calls
    `begin` only; running episodes are then dropped, because they did not end.

    Args:
        length: zeros [B] int64, an array or a tensor; also an attribute, the number of actions in each running episode.
        ret: zeros [B] float64; also an attribute, the undiscounted return of each running episode.
        clear: function (values, mask [B] bool) -> values, with 0 if the mask is True.
    """

    def __init__(self, length: Rows, ret: Rows, clear: Callable[[Rows, Rows], Rows]) -> None:
        self.length, self.ret, self._clear = length, ret, clear
        self.finished = Episodes()  # the ended ones, ordered by time, then by environment

    def step(self) -> None:
        """Count an action in every environment."""
        self.length = self.length + 1

    def begin(self, opens: Rows) -> None:
        """Start an episode of length 0 in each environment for which `opens` [B] is True."""
        self.length, self.ret = self._clear(self.length, opens), self._clear(self.ret, opens)

    def add(self, reward: Rows) -> None:
        """Add the rewards [B] of a step; those of environments that were reset are 0."""
        self.ret = self.ret + reward

    def state_dict(self) -> State:
        """Return the state, for a checkpoint."""
        return {"return": self.ret, "length": self.length, "finished": self.finished.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; `length` and `return` must be of the class of the attributes."""
        self.ret, self.length = state["return"], state["length"]
        self.finished = Episodes.from_state(state["finished"])


def refuse_other_envs(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunError if environments were saved with other values of the keys of `now`, such as `num_envs`."""
    for key, value in now.items():
        if saved.get(key) != value:
            raise RunError(
                f"the environments were saved with {key}={saved.get(key)}, but {key} is {value} now; use the settings "
                "and the version of the saved run"
            )

"""Numbers in `info` that are logged (`env.info_keys`): reading them in a step, and their statistics over episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlcore.config.info_keys import KEY, InfoKey, read_info_keys
from rlcore.types import State


def read_value(info: Any, key: InfoKey) -> float:
    """Return the value of a key in `info`, or NaN if it is missing; raise ValueError if it is not a number."""
    if not isinstance(info, Mapping):
        raise ValueError(f"info is {info!r}, but must be a mapping")
    value = key.find(info)
    if value is None:
        return math.nan
    if value.__class__ is not float:
        value = _plain(value, key.name)
    if not math.isfinite(value):
        raise ValueError(
            f"info[{key.name!r}] is {value}, but {KEY} needs finite numbers; leave the key out of info in steps "
            f"without a value, or remove {key.name} from {KEY}"
        )
    return value


def _plain(value: Any, name: str) -> float:
    shape = getattr(value, "shape", ())
    if shape == () and not isinstance(value, (str, bytes, complex, np.character)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    what = f"an array of shape {[*shape]}" if shape else f"{value!r} ({type(value).__name__})"
    raise ValueError(
        f"info[{name!r}] is {what}, but {KEY} needs one number; change the environment, or remove {name} from {KEY}"
    )


class InfoStatistics:
    """Sums, counts and last values of numbers in `info`, over the running episodes of B environments.

    Args:
        keys: value of `env.info_keys`, K entries.
        num_envs: B.

    Attributes:
        values: [B, K] float64; the values of the current step, which the caller writes; NaN = not in `info`.
    """

    values: np.ndarray

    def __init__(self, keys: Sequence[str], num_envs: int) -> None:
        self.keys = read_info_keys(keys)
        shape = (num_envs, len(self.keys))
        self.values = np.full(shape, np.nan)
        self._sum, self._count, self._last = np.zeros(shape), np.zeros(shape, np.int64), np.full(shape, np.nan)

    def begin(self, opening: list[int]) -> None:
        """Start an episode in each of these environments."""
        self._sum[opening], self._count[opening], self._last[opening] = 0.0, 0, np.nan

    def add(self) -> None:
        """Add the values of a step; those of environments that were reset are NaN."""
        known = ~np.isnan(self.values)
        self._sum += np.where(known, self.values, 0.0)
        self._count += known
        self._last = np.where(known, self.values, self._last)

    def of_episodes(self, indices: list[int]) -> dict[str, list[float | None]]:
        """Return name -> value for the episode of each of these environments; None if no step had a value."""
        found: dict[str, list[float | None]] = {}
        for place, key in enumerate(self.keys):
            counts, lasts = self._count[indices, place], self._last[indices, place]
            values = lasts if key.last else self._sum[indices, place] / np.maximum(counts, 1)
            found[key.name] = [value if count else None for value, count in zip(values.tolist(), counts, strict=True)]
        return found

    def state_dict(self) -> State:
        """Return the state, for a checkpoint."""
        names = [key.name for key in self.keys]
        return {"names": names, "sum": self._sum.copy(), "count": self._count.copy(), "last": self._last.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; a key that was added since then has no values yet."""
        saved = {name: place for place, name in enumerate(state["names"])}
        for place, key in enumerate(self.keys):
            for name, array in (("sum", self._sum), ("count", self._count), ("last", self._last)):
                if key.name in saved:
                    array[:, place] = np.asarray(state[name])[:, saved[key.name]]

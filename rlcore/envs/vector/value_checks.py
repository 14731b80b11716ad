"""Checks of the observations that environments return: finite, small enough for float32, and inside their space."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from rlcore.envs.spaces import LARGEST, Bounds
from rlcore.errors import EnvironmentFault
from rlcore.spec import EnvSpec

log = logging.getLogger(__name__)


class ObservationChecks:
    """Checks of the observations of B environments.

    Args:
        spec: spec of one environment.
        bounds: observation key -> (lower bound, upper bound); values outside the bounds are counted.
    """

    def __init__(self, spec: EnvSpec, bounds: Bounds) -> None:
        self.spec, self.bounds = spec, bounds
        self.outside: dict[str, int] = {}  # observation key -> number of values outside the bounds so far
        limits = {key: _limits(np.dtype(part.dtype), bounds.get(key)) for key, part in spec.obs.items()}
        self._limits = {key: limit for key, limit in limits.items() if limit is not None}

    def check(self, obs: dict[str, np.ndarray], length: np.ndarray) -> None:
        """Check the observations of a step; raise EnvironmentFault if a value cannot be used.

        Args:
            obs: key -> [B, ...].
            length: steps of each running episode, [B], for messages.
        """
        for key, (low, high) in self._limits.items():
            values = obs[key]
            if not np.logical_and.reduce((values >= low) & (values <= high), axis=None):  # NaN is neither
                self._look_closer(key, values, length)

    def _look_closer(self, key: str, values: np.ndarray, length: np.ndarray) -> None:
        if values.dtype.kind == "f" and not (fine := np.abs(values) <= LARGEST).all():  # NaN is not
            _refuse(f"key {key!r}", fine, values, length)
        low, high = self.bounds[key]
        self._count_outside(key, values, (values >= low) & (values <= high), length)

    def _count_outside(self, key: str, values: np.ndarray, fine: np.ndarray, length: np.ndarray) -> None:
        """Count the values of a key that are outside the bounds of its space, and log a warning for the first one.

        If the space is Discrete, raise EnvironmentFault instead.
        """
        if self.spec.obs[key].n is not None:
            _refuse(f"key {key!r} is outside its space: the value", fine, values, length)
        if key not in self.outside:
            index = int(np.argwhere(~fine.reshape(len(fine), -1).all(1))[0, 0])
            log.warning(
                "environment %d, step %d of its episode: key %r is outside the bounds of its space; the values are "
                "used unchanged (logged once)",
                index,
                length[index],
                key,
            )
        self.outside[key] = self.outside.get(key, 0) + int((~fine).sum())


def _refuse(what: str, fine: np.ndarray, values: np.ndarray, length: np.ndarray) -> None:
    """Raise EnvironmentFault for the first value that is not fine."""
    for index in range(len(fine)):
        if not fine[index].all():
            place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(fine[index]))[0])
            value = np.atleast_1d(values[index])[place]
            raise EnvironmentFault(
                f"environment {index}, step {length[index]} of its episode: {what} is {value}"
                + (f" at {list(place)}" if np.ndim(values[index]) else "")
                + (
                    f", but agents compute in float32, whose largest number is {LARGEST:.3g}"
                    if LARGEST < abs(value) < np.inf
                    else ""
                )
            )


def _limits(dtype: np.dtype, bounds: tuple[np.ndarray, np.ndarray] | None) -> tuple[Any, Any] | None:
    """Return the lower and upper bounds of values that need no further check; None if every value of `dtype` is valid.

    Values between these bounds are finite and inside the bounds of the space.
    """
    if dtype.kind in "iu" and bounds is not None:
        held = np.iinfo(dtype)  # uint8 pixels in 0 to 255 need no comparison, which would cost more than a copy
        return None if (bounds[0] <= held.min).all() and (bounds[1] >= held.max).all() else bounds
    if dtype.kind != "f":
        return bounds
    largest = min(np.finfo(dtype).max, LARGEST)
    low, high = bounds or (-largest, largest)
    return np.maximum(low, -largest), np.minimum(high, largest)

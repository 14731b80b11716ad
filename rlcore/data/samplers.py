"""Samplers: which rows of a replay memory a gradient step learns from.

A sampler is how many steps a drawn sequence has, and where sequences begin. Others, of whole episodes or by priority,
are classes like these.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from rlcore.errors import RunError

MANY = 64  # rounds of drawing again, after which it is asked whether there is a step at all


class Remembered(Protocol):
    """A memory as samplers see it: rows `oldest` to `written`, of `width` environments."""

    @property
    def oldest(self) -> int:
        """The first row that may be drawn, counted from the first of all time."""
        ...

    @property
    def written(self) -> int:
        """The row after the newest: the arrival that waits for its action."""
        ...

    @property
    def width(self) -> int:
        """B, environments."""
        ...

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Whether the step from each place [N] opens the next episode, so that nobody took it: [N] bool."""
        ...


class Sampler(Protocol):
    """Where drawn sequences begin.

    Attributes:
        length: L, steps of each of them; the row after the last step comes along.
    """

    length: int

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw places [count] int64, row · B + environment, where sequences begin: row + L ≤ `memory.written`."""
        ...


class Transitions:
    """Steps that were taken, each as likely as any other, and the up to n - 1 after it.

    Args:
        n_step: n.
    """

    def __init__(self, n_step: int = 1) -> None:
        self.length = n_step

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`; what only resets is drawn again. A RunError where all rows do."""
        low, high = _bounds(memory, self.length)
        places = rng.integers(low, high, count)
        for rounds in itertools.count(1):
            resets = memory.only_resets(places)
            if not (again := np.count_nonzero(resets)):
                break
            if rounds % MANY == 0 and memory.only_resets(np.arange(low, high)).all():
                raise RunError(
                    f"no step to learn from: each of the {high - low} rows that may be drawn only resets; let the "
                    "memory remember more, or learning start later"
                )
            places[resets] = rng.integers(low, high, again)
        return places


class Sequences:
    """Rows of one environment that followed each other, each beginning as likely as any other; they may cross ends.

    Args:
        length: L.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`."""
        return rng.integers(*_bounds(memory, self.length), count)


def _bounds(memory: Remembered, length: int) -> tuple[int, int]:
    width = memory.width
    return memory.oldest * width, (memory.written - length + 1) * width

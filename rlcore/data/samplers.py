"""Samplers: which rows of a replay memory a gradient step learns from.

A sampler is how many steps a drawn sequence has, and where sequences begin. Others, by priority say, are classes like
these.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from rlcore.data.episodes import WholeEpisodes
from rlcore.errors import RunError

MANY = 64  # rounds of drawing again, after which it is asked whether there is a step at all
Position = tuple[int, ...]  # of a queue: what was handed out of it; () = nothing


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
    def collected(self) -> int:
        """The first row that was collected in this run: those before it are of a dataset."""
        ...

    @property
    def width(self) -> int:
        """B, environments."""
        ...

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Places [N] -> [N] bool: the step from there opens the next episode, so that nobody took it."""
        ...

    def episodes(self) -> WholeEpisodes:
        """Whole episodes among the rows that may be drawn."""
        ...


class Sampler:
    """Choice of the places at which drawn sequences begin; a base class.

    Attributes:
        length: L, steps of each of them; the row after the last step comes along.
    """

    length: int

    def can_draw(self, memory: Remembered) -> bool:
        """True when there is a sequence."""
        return memory.written >= self.length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw places [count] int64, row · B + environment, where sequences begin: row + L ≤ `memory.written`."""
        raise NotImplementedError

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Sequences that were not handed out before, the oldest first: each new row is in one of them, once.

        Args:
            memory: whose.
            position: of the queue; what was overwritten since is passed over.
            count: how many are wanted.

        Returns:
            Their places, [count] or fewer, and the position after them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no queue of new sequences")


class Transitions(Sampler):
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

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`; what only resets is passed over."""
        low, high = _bounds(memory, self.length)
        low = max(low, memory.collected * memory.width, *(position or (0,)))
        end = max(low, min(high, low + 2 * count))
        taken = np.arange(low, end)
        taken = taken[~memory.only_resets(taken)][:count]
        return taken, (int(taken[-1]) + 1 if len(taken) == count else end,)


class Sequences(Sampler):
    """Rows of one environment that followed each other, each beginning as likely as any other; they may cross ends.

    Args:
        length: L.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`."""
        return rng.integers(*_bounds(memory, self.length), count)

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`; those of an environment follow each other without a gap, from the first row that is new."""
        width, length, first = memory.width, self.length, memory.collected
        lost = max(0, -(-(memory.oldest - first) // length))  # sequences of each environment
        low, high = max(lost * width, *(position or (0,))), (memory.written - first) // length * width
        number = np.arange(low, max(low, min(high, low + count)))
        places = (first + number // width * length) * width + number % width
        return places, (low + len(number),)


class Episodes(Sampler):
    """Sequences within one episode that has ended, every episode with so many rows as likely as any other.

    Where they begin in it is uniform. With prioritised ends (arXiv:2010.02193, its authors' code), it is drawn from all
    of its rows, and one that would reach beyond the end is the last one: L + 1 times as likely as another.

    Args:
        length: L; shorter episodes are never drawn.
        prioritize_ends: as said.
    """

    def __init__(self, length: int, prioritize_ends: bool = False) -> None:
        self.length, self.prioritize_ends = length, prioritize_ends
        self._fitting: tuple[WholeEpisodes, np.ndarray] | None = None  # of the last memory.episodes(): which are long

    def can_draw(self, memory: Remembered) -> bool:
        """True when an episode of so many rows has ended."""
        return len(self._long_enough(memory.episodes())) > 0

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`."""
        episodes = memory.episodes()
        begins, lengths = episodes
        fits = self._long_enough(episodes)
        chosen = fits[rng.integers(0, len(fits), count)]
        last = lengths[chosen] - self.length
        drawn = rng.integers(0, last + 1 + (self.length if self.prioritize_ends else 0))
        return begins[chosen] + np.minimum(drawn, last) * memory.width

    def _long_enough(self, episodes: WholeEpisodes) -> np.ndarray:
        """Return indices of the episodes that may be drawn; they change only when one ends or is overwritten."""
        if self._fitting is None or self._fitting[0] is not episodes:
            self._fitting = episodes, np.flatnonzero(episodes.lengths >= self.length)
        return self._fitting[1]

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`; those of an episode come when it has ended, and the last of them ends where it does.

        Its first rows, fewer than a sequence, are left out. The position is the place that ended the newest episode of
        which something was handed out, and how much was.
        """
        width, (begins, lengths) = memory.width, memory.episodes()
        ends = begins + (lengths - 1) * width
        last, taken = position or (-1, 0)
        found: list[int] = []
        at = int(np.searchsorted(ends, max(last, memory.collected * width)))
        for begin, length, end in zip(begins[at:], lengths[at:], ends[at:], strict=True):
            if len(found) == count:
                break
            last, taken = int(end), taken if end == last else 0
            first, number = begin + length % self.length * width, int(length // self.length)
            more = range(taken, min(number, taken + count - len(found)))
            found += [int(first) + k * self.length * width for k in more]
            taken += len(more)
        return np.array(found, np.int64), (last, taken)


def _bounds(memory: Remembered, length: int) -> tuple[int, int]:
    width = memory.width
    return memory.oldest * width, (memory.written - length + 1) * width

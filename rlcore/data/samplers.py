"""Samplers, which choose the sequences of a replay buffer that a gradient step trains on.

A sampler defines the length of the sequences and where they start. To sample in another way, for example by priority,
write a subclass of `Sampler`.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from rlcore.data.episodes import WholeEpisodes
from rlcore.errors import RunError

MANY = 64  # rounds of resampling, after which `draw` checks if there is any valid step
Position = tuple[int, ...]  # position in a queue of new sequences; () at its start


class Remembered(Protocol):
    """Interface of a replay buffer for samplers: rows `oldest` to `written` of `width` environments."""

    @property
    def oldest(self) -> int:
        """Index of the oldest row that can be sampled, counted from the start of the run."""
        ...

    @property
    def written(self) -> int:
        """Index of the row after the newest: the last time step, which has no action yet."""
        ...

    @property
    def collected(self) -> int:
        """Index of the first row that this run collected; the rows before it are from a dataset."""
        ...

    @property
    def width(self) -> int:
        """B, number of environments."""
        ...

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Return [N] bool for places [N]: True if the step from a row is only a reset, without an action."""
        ...

    def episodes(self) -> WholeEpisodes:
        """Return the complete episodes among the rows that can be sampled."""
        ...


class Sampler:
    """Base class of samplers, which choose the places at which sequences start.

    Attributes:
        length: L, number of steps of a sequence; the row after its last step is also returned.
    """

    length: int

    def can_draw(self, memory: Remembered) -> bool:
        """Return True if at least one sequence can be sampled."""
        return memory.written >= self.length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample places [count] int64, row · B + environment, of first rows, with row + L ≤ `memory.written`."""
        raise NotImplementedError

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Return the next new sequences, oldest first. Together, they contain each new row at most once.

        Args:
            memory: the replay buffer.
            position: position in the queue; sequences that were overwritten since are skipped.
            count: maximum number of sequences.

        Returns:
            Places of their first rows, [count] or fewer, and the position after them.

        Raises:
            NotImplementedError: the sampler does not support it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no queue of new sequences")


class Transitions(Sampler):
    """Uniform sampling of transitions, each with the up to n - 1 transitions after it.

    Args:
        n_step: n.
    """

    def __init__(self, n_step: int = 1) -> None:
        self.length = n_step

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`. Rows that are only resets are resampled. Raises RunError if all rows are."""
        low, high = _bounds(memory, self.length)
        places = rng.integers(low, high, count)
        for rounds in itertools.count(1):
            resets = memory.only_resets(places)
            if not (again := np.count_nonzero(resets)):
                break
            if rounds % MANY == 0 and memory.only_resets(np.arange(low, high)).all():
                raise RunError(
                    f"no transition can be sampled: each of the {high - low} rows in the replay buffer is only a "
                    "reset; increase buffer.size or algo.learning_starts"
                )
            places[resets] = rng.integers(low, high, again)
        return places

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`. Rows that are only resets are skipped."""
        low, high = _bounds(memory, self.length)
        low = max(low, memory.collected * memory.width, *(position or (0,)))
        end = max(low, min(high, low + 2 * count))
        taken = np.arange(low, end)
        taken = taken[~memory.only_resets(taken)][:count]
        return taken, (int(taken[-1]) + 1 if len(taken) == count else end,)


class Sequences(Sampler):
    """Uniform sampling of sequences of consecutive rows of an environment, which may cross episode ends.

    Args:
        length: L.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """See `Sampler`."""
        return rng.integers(*_bounds(memory, self.length), count)

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`. The sequences of an environment are adjacent, from the first row that this run collected."""
        width, length, first = memory.width, self.length, memory.collected
        lost = max(0, -(-(memory.oldest - first) // length))  # overwritten sequences of each environment
        low, high = max(lost * width, *(position or (0,))), (memory.written - first) // length * width
        number = np.arange(low, max(low, min(high, low + count)))
        places = (first + number // width * length) * width + number % width
        return places, (low + len(number),)


class Episodes(Sampler):
    """Sampling of sequences within complete episodes, uniform over the episodes with at least L rows.

    The start within the episode is uniform too. With `prioritize_ends` (arXiv:2010.02193, code of the authors), starts
    up to L rows beyond the last possible one are also drawn and moved back to it. The last possible start is then
    L + 1 times as likely as any other.

    Args:
        length: L; shorter episodes are never sampled.
        prioritize_ends: sample the last sequence of an episode more often.
    """

    def __init__(self, length: int, prioritize_ends: bool = False) -> None:
        self.length, self.prioritize_ends = length, prioritize_ends
        self._fitting: tuple[WholeEpisodes, np.ndarray] | None = None  # cache of `_long_enough`

    def can_draw(self, memory: Remembered) -> bool:
        """Return True if an episode of at least L rows is complete."""
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
        """Return the indices of the episodes with at least L rows; cached until an episode ends or is overwritten."""
        if self._fitting is None or self._fitting[0] is not episodes:
            self._fitting = episodes, np.flatnonzero(episodes.lengths >= self.length)
        return self._fitting[1]

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """See `Sampler`. The sequences of an episode are returned after it has ended; the last one ends with it.

        The first `length % L` rows of an episode are skipped. The position has the last place of the newest episode
        that was used, and the number of its sequences that were returned.
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

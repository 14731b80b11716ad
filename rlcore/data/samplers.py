"""Samplers, which choose the sequences of rows in a replay buffer that a gradient step uses.

A row is the data of one time step. A sampler defines the length of the sequences and the rows at which they start. To
sample in another way, for example by priority, write a subclass of `Sampler`.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from rlcore.data.episodes import WholeEpisodes
from rlcore.errors import RunError

MANY = 64  # number of times that rows are drawn again, before `draw` checks if there is any valid row
Position = tuple[int, ...]  # position in a queue of new sequences; () at its start


class Remembered(Protocol):
    """Part of a replay buffer's interface that samplers use.

    The buffer contains the rows (time steps) `oldest` to `written` of `width` environments.
    """

    @property
    def oldest(self) -> int:
        """Index of the oldest row that can be sampled, counted from the start of the run."""
        ...

    @property
    def written(self) -> int:
        """Number of rows per environment that have an action, counted from the start of the run.

        It is also the index of the current time step, whose action is not chosen yet.
        """
        ...

    @property
    def collected(self) -> int:
        """Index of the first row that this run collected; earlier rows were loaded from a dataset."""
        ...

    @property
    def width(self) -> int:
        """B, number of environments."""
        ...

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Return [N] bool for the rows at `places` [N]: True if no transition starts in the row.

        This is the case if the row is the last one of its episode, because the next step then only resets the
        environment. The place of row number t of environment b is the integer t · B + b.
        """
        ...

    def episodes(self) -> WholeEpisodes:
        """Return the complete episodes among the rows that can be sampled."""
        ...


class Sampler:
    """Base class of samplers, which choose the rows of a replay buffer in which sequences start.

    A sampler returns the place of each row: the integer t · B + b, for row number t of environment b.

    Attributes:
        length: L, number of steps of a sequence. The buffer returns the L rows of these steps and the row after them.
    """

    length: int

    def can_draw(self, memory: Remembered) -> bool:
        """Return True if at least one sequence can be sampled."""
        return memory.written >= self.length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` sequences, and return the place of the first row of each: [count] int64.

        The place of row number t of environment b is the integer t · B + b. All L rows of a sequence and the row after
        them are in the buffer: t + L ≤ `memory.written`.
        """
        raise NotImplementedError

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Return sequences of rows that no earlier call of `queue` returned, oldest first.

        With this method, a replay buffer can train on each collected row once before it samples rows at random. The
        sequences form a queue and do not overlap. The caller stores the position in the queue between calls.

        Args:
            memory: the replay buffer.
            position: position that the last call returned; () for the first call. Sequences after it that the buffer
                has already overwritten are skipped.
            count: maximum number of sequences.

        Returns:
            Places (t · B + b, for row t of environment b) of the first rows, [count] or fewer, and the position after
            these sequences.

        Raises:
            NotImplementedError: the sampler does not implement this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement `queue`, so it cannot return the newest sequences; implement "
            "it, or set buffer.online=false"
        )


class Transitions(Sampler):
    """Sampler of transitions, all with the same probability.

    For n-step returns, each sample is a sequence of n rows that starts with the sampled transition.

    Args:
        n_step: n, number of rows of a sample.
    """

    def __init__(self, n_step: int = 1) -> None:
        self.length = n_step

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` transitions, and return the place of the row in which each starts: [count] int64.

        The last row of an episode is replaced by another random row, because the next step only resets the environment.
        Raises RunError if all rows of the buffer are last rows of episodes.
        """
        low, high = _bounds(memory, self.length)
        places = rng.integers(low, high, count)
        for rounds in itertools.count(1):
            resets = memory.only_resets(places)
            if not (again := np.count_nonzero(resets)):
                break
            if rounds % MANY == 0 and memory.only_resets(np.arange(low, high)).all():
                raise RunError(
                    f"no transition can be sampled: all {high - low} rows in the replay buffer are last rows of "
                    "episodes; increase buffer.size or algo.learning_starts"
                )
            places[resets] = rng.integers(low, high, again)
        return places

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Return transitions that no earlier call returned, oldest first (see `Sampler.queue`).

        The last row of an episode is skipped, because the next step only resets the environment.
        """
        low, high = _bounds(memory, self.length)
        low = max(low, memory.collected * memory.width, *(position or (0,)))
        end = max(low, min(high, low + 2 * count))
        taken = np.arange(low, end)
        taken = taken[~memory.only_resets(taken)][:count]
        return taken, (int(taken[-1]) + 1 if len(taken) == count else end,)


class Sequences(Sampler):
    """Sampler of sequences of consecutive rows of one environment, all with the same probability.

    A sequence can contain the end of an episode and the start of the next one.

    Args:
        length: L, number of rows of a sequence.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` sequences, and return the place of the first row of each: [count] int64."""
        return rng.integers(*_bounds(memory, self.length), count)

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Return sequences that no earlier call returned, oldest first (see `Sampler.queue`).

        The rows of an environment are divided into consecutive sequences of L rows. The first sequence starts with the
        first row that this run collected, so rows that were loaded from a dataset are not returned.
        """
        width, length, first = memory.width, self.length, memory.collected
        lost = max(0, -(-(memory.oldest - first) // length))  # number of overwritten sequences of each environment
        low, high = max(lost * width, *(position or (0,))), (memory.written - first) // length * width
        number = np.arange(low, max(low, min(high, low + count)))
        places = (first + number // width * length) * width + number % width
        return places, (low + len(number),)


class EpisodeSequences(Sampler):
    """Sampler of sequences that lie within one complete episode.

    First an episode is drawn: all complete episodes of at least L rows are equally likely. Then the first row of the
    sequence is drawn uniformly from the rows at which a sequence of L rows fits into the episode. With
    `prioritize_ends` (arXiv:2010.02193, code of the authors), the range of this draw has L more rows at its end; if one
    of them is drawn, the sequence is the last L rows of the episode. The last L rows are therefore L + 1 times as
    likely as any other sequence of the episode.

    Args:
        length: L; shorter episodes are never sampled.
        prioritize_ends: if True, the last sequence of an episode is sampled more often.
    """

    def __init__(self, length: int, prioritize_ends: bool = False) -> None:
        self.length, self.prioritize_ends = length, prioritize_ends
        self._fitting: tuple[WholeEpisodes, np.ndarray] | None = None  # cached result of `_long_enough`

    def can_draw(self, memory: Remembered) -> bool:
        """Return True if the buffer has a complete episode of at least L rows."""
        return len(self._long_enough(memory.episodes())) > 0

    def draw(self, memory: Remembered, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` sequences, and return the place of the first row of each: [count] int64."""
        episodes = memory.episodes()
        begins, lengths = episodes
        fits = self._long_enough(episodes)
        chosen = fits[rng.integers(0, len(fits), count)]
        last = lengths[chosen] - self.length
        drawn = rng.integers(0, last + 1 + (self.length if self.prioritize_ends else 0))
        return begins[chosen] + np.minimum(drawn, last) * memory.width

    def _long_enough(self, episodes: WholeEpisodes) -> np.ndarray:
        """Return the indices of the episodes with at least L rows; cached until the set of episodes changes."""
        if self._fitting is None or self._fitting[0] is not episodes:
            self._fitting = episodes, np.flatnonzero(episodes.lengths >= self.length)
        return self._fitting[1]

    def queue(self, memory: Remembered, position: Position, count: int) -> tuple[np.ndarray, Position]:
        """Return sequences that no earlier call returned, oldest first (see `Sampler.queue`).

        An episode is divided into sequences after it has ended. If its length is not a multiple of L, the first
        `length % L` rows are skipped, so that the last sequence ends with the episode. The position consists of two
        numbers: the place of the last row of the most recently used episode, and how many sequences of this episode
        were returned.
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

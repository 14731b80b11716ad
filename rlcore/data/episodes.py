"""Index of the complete episodes in a replay buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WholeEpisodes(NamedTuple):
    """Complete episodes in a replay buffer, ordered by their last row, then by environment.

    Attributes:
        begins: [E] int64, for each episode the place of its first row: the integer t · B + b, for row number t and
            environment b.
        lengths: [E] int64, for each episode the number of its rows, including the row in which it ended.
    """

    begins: np.ndarray
    lengths: np.ndarray


class EpisodeIndex:
    """Incremental search for complete episodes in a replay buffer.

    An episode ends with a row in which it terminated or was truncated; the next episode starts in the following row. An
    episode is complete if the buffer stores all of its rows and the row before its first one. That row is needed
    because it shows that an episode starts after it, except for the first episode of the run. The result depends only
    on the stored rows, not on when `find` was called.

    Args:
        width: B, number of environments.
    """

    def __init__(self, width: int) -> None:
        self.width, self._row = width, 0  # the first row that was not searched yet
        self._open = np.zeros(width, np.int64)  # first row of each unfinished episode; -1: unknown
        self._found = WholeEpisodes(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._first = 0  # smallest place of the first row of a complete episode

    def next_row(self, oldest: int) -> int:
        """Return the first row of the flags that the next call of `find` needs.

        This is the first row that was not passed to `find` yet, or `oldest`, the oldest stored row, if that is later.
        """
        if oldest > self._row:
            self._row, self._open[:] = oldest, -1
        return self._row

    def find(self, ended: np.ndarray, oldest: int) -> WholeEpisodes:
        """Return the complete episodes among the rows at or after row `oldest`.

        Args:
            ended: [rows, B] bool, True if an episode ended in the row. It has the rows from `next_row(oldest)` to the
                newest row of the buffer.
            oldest: number of the oldest row that the buffer stores.

        Returns:
            All complete episodes, including those that earlier calls returned. If nothing changed, the same object is
            returned.
        """
        begins: list[int] = []
        lengths: list[int] = []
        for row, env in np.argwhere(ended) + np.array([self._row, 0]):
            if self._open[env] >= 0:
                begins.append(self._open[env] * self.width + env)
                lengths.append(row - self._open[env] + 1)
            self._open[env] = row + 1
        self._row += len(ended)
        # An episode before `kept_from` is removed, because the row before its first row is no longer stored.
        known, kept_from = self._found, (oldest + 1) * self.width if oldest else 0
        if not begins and (self._first >= kept_from or not len(known.begins)):
            return known
        all_begins = np.append(known.begins, np.array(begins, np.int64))
        all_lengths = np.append(known.lengths, np.array(lengths, np.int64))
        there = all_begins >= kept_from
        self._found = WholeEpisodes(all_begins[there], all_lengths[there])
        self._first = int(self._found.begins.min(initial=np.iinfo(np.int64).max))
        return self._found

"""Index of the complete episodes in a replay buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WholeEpisodes(NamedTuple):
    """Complete episodes, ordered by their last row, then by environment.

    Attributes:
        begins: [E] int64, places of their first rows, row · B + environment.
        lengths: [E] int64, number of rows of each, including the row that ended it.
    """

    begins: np.ndarray
    lengths: np.ndarray


class EpisodeIndex:
    """Incremental search for complete episodes, by the rows that ended them.

    An episode starts after the row that ended the previous one. It is found only if that row is stored too, unless it
    is the first episode of the run. The result depends only on the stored rows, not on when `find` was called.

    Args:
        width: B, number of environments.
    """

    def __init__(self, width: int) -> None:
        self.width, self._row = width, 0  # the first row that was not searched yet
        self._open = np.zeros(width, np.int64)  # first row of each unfinished episode; -1: unknown
        self._found = WholeEpisodes(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._first = 0  # smallest place of a found episode

    def next_row(self, oldest: int) -> int:
        """Return the first row, from `oldest`, that was not passed to `find` yet."""
        if oldest > self._row:
            self._row, self._open[:] = oldest, -1
        return self._row

    def find(self, ended: np.ndarray, oldest: int) -> WholeEpisodes:
        """Find the complete episodes among the rows from `oldest`.

        Args:
            ended: [rows, B] bool, True if an episode ended; the rows from `next_row` to the newest.
            oldest: the first row that is stored.

        Returns:
            All complete episodes, including those found by earlier calls; the same object if nothing changed.
        """
        begins: list[int] = []
        lengths: list[int] = []
        for row, env in np.argwhere(ended) + np.array([self._row, 0]):
            if self._open[env] >= 0:
                begins.append(self._open[env] * self.width + env)
                lengths.append(row - self._open[env] + 1)
            self._open[env] = row + 1
        self._row += len(ended)
        # An older episode is dropped, because the row before its first row is no longer stored.
        known, kept_from = self._found, (oldest + 1) * self.width if oldest else 0
        if not begins and (self._first >= kept_from or not len(known.begins)):
            return known
        all_begins = np.append(known.begins, np.array(begins, np.int64))
        all_lengths = np.append(known.lengths, np.array(lengths, np.int64))
        there = all_begins >= kept_from
        self._found = WholeEpisodes(all_begins[there], all_lengths[there])
        self._first = int(self._found.begins.min(initial=np.iinfo(np.int64).max))
        return self._found

"""Episodes of a memory: where the whole ones lie that it remembers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class WholeEpisodes(NamedTuple):
    """Whole episodes in the order of their last rows, and within a row of their environments.

    Attributes:
        begins: [E] int64, places of their first rows, row · B + environment.
        lengths: [E] int64, rows of each, the one that ended it among them.
    """

    begins: np.ndarray
    lengths: np.ndarray


class EpisodeIndex:
    """Whole episodes, found by the rows that ended them.

    An episode counts from the row after the one that ended the episode before; so both must be remembered, unless it
    is the first of all time. What is found depends on the remembered rows alone, not on when somebody asked.

    Args:
        width: B, environments.
    """

    def __init__(self, width: int) -> None:
        self.width, self._row = width, 0  # the first that was not looked at
        self._open = np.zeros(width, np.int64)  # rows where the episodes begin that have not ended; -1: unknown
        self._found = WholeEpisodes(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._first = 0  # the first place of all that are found

    def next_row(self, oldest: int) -> int:
        """The first row whose ends are to be told to `find`, of those from `oldest` on."""
        if oldest > self._row:
            self._row, self._open[:] = oldest, -1
        return self._row

    def find(self, ended: np.ndarray, oldest: int) -> WholeEpisodes:
        """Whole episodes among rows from `oldest` on.

        Args:
            ended: [rows, B] bool, whether an episode ended, of the rows from `next_row` to the newest.
            oldest: the first row that is remembered.

        Returns:
            Those found now and before; the same object as at the last call if they are the same.
        """
        begins: list[int] = []
        lengths: list[int] = []
        for row, env in np.argwhere(ended) + np.array([self._row, 0]):
            if self._open[env] >= 0:
                begins.append(self._open[env] * self.width + env)
                lengths.append(row - self._open[env] + 1)
            self._open[env] = row + 1
        self._row += len(ended)
        known, kept_from = (
            self._found,
            (oldest + 1) * self.width if oldest else 0,
        )  # of older ones the row before is gone
        if not begins and (self._first >= kept_from or not len(known.begins)):
            return known
        all_begins = np.append(known.begins, np.array(begins, np.int64))
        all_lengths = np.append(known.lengths, np.array(lengths, np.int64))
        there = all_begins >= kept_from
        self._found = WholeEpisodes(all_begins[there], all_lengths[there])
        self._first = int(self._found.begins.min(initial=np.iinfo(np.int64).max))
        return self._found

"""News of a run's event log: what it says that its backends have not been brought yet.

A mirror is asked every half minute for days: what it costs is what is new, not the whole log again. Another process
knows nothing of that, and begins at the first event. The points of a few events are kept for all backends; those of
many are read again from the disk by each, and never kept in memory.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventReader, ending
from rlcore.store.series import Event, Point, PointFilter, points

FEW = 500  # events whose points are kept in memory


class NewEvents:
    """The log of one run, as this process has read it.

    Args:
        run: whose.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.whole = False  # what is new is all there is
        self.first: Event | None = None  # of the log
        self.start: Event | None = None  # the one that says when and with what the run began
        self.ended: Event | None = None  # how training ended, as `rlcore.store.events.ending` says
        self.notes: dict[str, Any] = {}  # what a backend keeps from one time to the next
        self._reader = EventReader(run.events)
        self._told = PointFilter()
        self._kept: list[list[Point]] | None = []  # new moments; None: too many
        self._before = copy.deepcopy((self._reader, self._told))  # as they were before the last look
        self._looks = 0
        self._files: dict[Path, tuple[int, int]] = {}

    def read(self) -> NewEvents:
        """Read what has come since the last look."""
        self._before = copy.deepcopy((self._reader, self._told))
        self._looks += 1
        self.whole = self._looks == 1
        kept: list[list[Point]] = []
        for event in self._reader.read():
            self.first = self.first or event
            if event["kind"] == "start":
                self.start = self.start or event
            self.ended = ending((event,), self.ended)
            moment = list(points((event,), self._told))
            if len(kept) <= FEW:
                kept.append(moment)
        self._kept = kept if len(kept) <= FEW else None
        return self

    def moments(self) -> Iterator[list[Point]]:
        """Yield the points that came with the last look, a list for each event."""
        if self._kept is not None:
            yield from self._kept
            return
        reader, told = copy.deepcopy(self._before)
        for event in reader.read(until=self._reader.offset):
            yield list(points((event,), told))

    def points(self) -> Iterator[Point]:
        """Yield the points of all new moments."""
        return itertools.chain.from_iterable(self.moments())

    def everything(self) -> NewEvents:
        """The log up to now as a first look shows it."""
        return self if self.whole else NewEvents(self.run).read()

    def note(self, path: Path) -> None:
        """Note a file as this process has written it."""
        self._files[path] = _as_it_is(path)

    def is_unchanged(self, path: Path) -> bool:
        """Tell whether a file is as this process has left it: another one, or a person, may have changed it."""
        return path.exists() and self._files.get(path) == _as_it_is(path)


def _as_it_is(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

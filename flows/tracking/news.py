"""Reader of the events in a run's log that were appended since the last update of the tracking backends.

During training, the backends are updated every 30 s, possibly for days. An update must therefore read only the new
events, not the complete log. A new process starts at the first event. If there are few new events, their metric values
are kept in memory for all backends. Otherwise each backend reads them again from the disk.
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
    """Reader of a run's event log that remembers its position.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.whole = False  # True if the new events are all events of the log
        self.first: Event | None = None  # first event of the log
        self.start: Event | None = None  # the start event
        self.ended: Event | None = None  # the end of training, from `rlcore.store.events.ending`
        self.notes: dict[str, Any] = {}  # state of the backends between updates
        self._reader = EventReader(run.events)
        self._filter = PointFilter()
        self._kept: list[list[Point]] | None = []  # points of each new event; None: too many
        self._before = copy.deepcopy((self._reader, self._filter))  # state of reader and filter before the last read
        self._reads = 0
        self._files: dict[Path, tuple[int, int]] = {}

    def read(self) -> NewEvents:
        """Read the events that were appended to the log since the last call; return this reader."""
        self._before = copy.deepcopy((self._reader, self._filter))
        self._reads += 1
        self.whole = self._reads == 1
        kept: list[list[Point]] = []
        for event in self._reader.read():
            self.first = self.first or event
            if event["kind"] == "start":
                self.start = self.start or event
            self.ended = ending((event,), self.ended)
            moment = list(points((event,), self._filter))
            if len(kept) <= FEW:
                kept.append(moment)
        self._kept = kept if len(kept) <= FEW else None
        return self

    def moments(self) -> Iterator[list[Point]]:
        """Yield a list of metric values for each event that the last call of `read` has read."""
        if self._kept is not None:
            yield from self._kept
            return
        reader, point_filter = copy.deepcopy(self._before)
        for event in reader.read(until=self._reader.offset):
            yield list(points((event,), point_filter))

    def points(self) -> Iterator[Point]:
        """Yield the metric values of all events that the last call of `read` has read."""
        return itertools.chain.from_iterable(self.moments())

    def everything(self) -> NewEvents:
        """Return a reader that has read the complete log: this one if it began at the first event, else a new one."""
        return self if self.whole else NewEvents(self.run).read()

    def note(self, path: Path) -> None:
        """Remember size and modification time of a file that this process has just written (see `is_unchanged`)."""
        self._files[path] = _file_state(path)

    def is_unchanged(self, path: Path) -> bool:
        """Return True if a file exists and has not been changed since this process passed its path to `note`."""
        return path.exists() and self._files.get(path) == _file_state(path)


def _file_state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

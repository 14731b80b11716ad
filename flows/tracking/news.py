"""News of a run's event log: what it says that its backends have not been brought yet.

A mirror is asked every half minute for days: what it costs is what is new, not the whole log again. Another process
knows nothing of that, and begins at the first event.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventReader, ending
from rlcore.store.series import Event, Point, points


class News:
    """The log of one run, as this process has read it.

    Args:
        run: whose.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.moments: list[list[Point]] = []  # points that have come since the look before, a list an event
        self.whole = False  # these are all there are
        self.first: Event | None = None  # of the log
        self.start: Event | None = None  # the one that says when and with what the run began
        self.ended: Event | None = None  # how training ended, as `rlcore.store.events.ending` says
        self.notes: dict[str, Any] = {}  # what a backend keeps from one time to the next
        self._reader = EventReader(run.events)
        self._told: set[tuple[str, int, float]] = set()
        self._looks = 0
        self._files: dict[Path, tuple[int, int]] = {}

    def look(self) -> News:
        """Read what has come since the last look."""
        events = list(self._reader.read())
        self._looks += 1
        self.whole = self._looks == 1
        self.moments = [list(points([event], self._told)) for event in events]
        self.first = self.first or (events[0] if events else None)
        self.start = self.start or next((event for event in events if event["kind"] == "start"), None)
        self.ended = ending(events, self.ended)
        return self

    @property
    def points(self) -> list[Point]:
        """The points of all new moments."""
        return [point for moment in self.moments for point in moment]

    def everything(self) -> News:
        """The log up to now as a first look shows it."""
        return self if self.whole else News(self.run).look()

    def note(self, path: Path) -> None:
        """Note a file as this process has written it."""
        self._files[path] = _as_it_is(path)

    def is_unchanged(self, path: Path) -> bool:
        """Tell whether a file is as this process has left it: another one, or a person, may have changed it."""
        return path.exists() and self._files.get(path) == _as_it_is(path)


def _as_it_is(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

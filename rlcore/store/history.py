"""History of a run by its event log, read once in a process: later calls read only the lines that came since."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcore.store.events import EventReader, ending
from rlcore.store.series import (
    BASELINE,
    CLOCKS,
    FINAL,
    LENGTH,
    RETURN,
    WHILE_TRAINING,
    Event,
    Line,
    Told,
    evaluations,
    points,
)

KEPT = frozenset((RETURN, LENGTH, BASELINE, *CLOCKS, *WHILE_TRAINING.values(), *FINAL.values()))
LOGS = 8  # that a process keeps in memory


class History:
    """Events of one log, and the points of the metrics that are asked for beside mirrors.

    Args:
        path: `events.jsonl`; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.ended: Event | None = None  # how training ended, as `rlcore.store.events.ending` says
        self.policy_steps = 0  # the largest of all metrics and checkpoints
        self.newest = 0.0  # time of the newest metrics
        self.lines: dict[str, Line] = {}  # metric -> points, of KEPT
        self.events: list[Event] = []  # all but the metrics, in the log's order
        self._by_kind: dict[str, list[Event]] = {}
        self._reader, self._told = EventReader(path), Told()
        self._file: tuple[int, int] | None = None  # device and inode of what is read
        self._last = b""  # the end of what is read

    def follow(self) -> None:
        """Read what came since the last call."""
        for event in self._reader.read():
            kind = event["kind"]
            self.ended = ending((event,), self.ended)
            if kind in ("metrics", "checkpoint"):
                self.policy_steps = max(self.policy_steps, event["policy_steps"])
            if kind == "metrics":
                self.newest = max(self.newest, event["time"])
            else:
                self.events.append(event)
                self._by_kind.setdefault(kind, []).append(event)
            for name, value, _, step in points((event,), self._told):
                if name in KEPT:
                    self.lines.setdefault(name, Line()).add(step, value)
        self._file, self._last = self._mark(self._reader.offset)

    def continues(self) -> bool:
        """Return True if the file still begins with what was read: another run may have the folder by now."""
        return self._file is None or (self._file, self._last) == self._mark(self._reader.offset)

    def of(self, kind: str) -> list[Event]:
        """Return the events of a kind other than metrics, in the log's order."""
        return self._by_kind.get(kind, [])

    @property
    def evaluations(self) -> list[Event]:
        """Evaluations while training, in the log's order."""
        return evaluations(self.of("evaluation"))

    def last(self, kind: str, **fields: Any) -> Event | None:
        """Return the last event of a kind with these values, or None."""
        fitting: Iterator[Event] = (
            event for event in reversed(self.of(kind)) if all(event.get(key) == value for key, value in fields.items())
        )
        return next(fitting, None)

    def _mark(self, offset: int) -> tuple[tuple[int, int] | None, bytes]:
        """Return which file the log is, and the last bytes before an offset."""
        try:
            descriptor = os.open(self._reader.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the reader says what is wrong with it
            return None, b""
        try:
            status, tail = os.fstat(descriptor), min(offset, 256)
            return (status.st_dev, status.st_ino), os.pread(descriptor, tail, offset - tail)
        finally:
            os.close(descriptor)


_read: dict[Path, History] = {}  # the one that was asked for last is the last
_reading = threading.Lock()


def history(path: Path) -> History:
    """Return what a log says up to now. The same object is returned for the same log, and grows with it."""
    path = path.absolute()
    with _reading:
        found = _read.pop(path, None)
        if found is None or not found.continues():
            found = History(path)
        found.follow()
        _read[path] = found
        while len(_read) > LOGS:
            del _read[next(iter(_read))]
        return found

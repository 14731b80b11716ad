"""Cached contents of a run's event log; later calls in the same process read only the new lines."""

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
    PointFilter,
    evaluations,
    points,
)

KEPT = frozenset((RETURN, LENGTH, BASELINE, *CLOCKS, *WHILE_TRAINING.values(), *FINAL.values()))
LOGS = 8  # number of logs that a process keeps in memory


class History:
    """Contents of an event log: all events except metrics, and the values of the metrics in `KEPT`.

    Only trackers use other metrics.

    Args:
        path: `events.jsonl`, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.ended: Event | None = None  # result of `rlcore.store.events.ending`
        self.policy_steps = 0  # largest number of policy steps in metrics and checkpoints
        self.newest = 0.0  # time of the newest metrics
        self.lines: dict[str, Line] = {}  # metric in KEPT -> its logged values
        self.events: list[Event] = []  # all events except metrics, in the log's order
        self._by_kind: dict[str, list[Event]] = {}
        self._reader, self._told = EventReader(path), PointFilter()
        self._file: tuple[int, int] | None = None  # device and inode of the file
        self._last = b""  # the last bytes that were read

    def refresh(self) -> None:
        """Read the events added since the last call."""
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
        """Return True if the file is the same as before and was only extended; otherwise a new run has replaced it."""
        return self._file is None or (self._file, self._last) == self._mark(self._reader.offset)

    def of(self, kind: str) -> list[Event]:
        """Return the events of a kind other than metrics, in the log's order."""
        return self._by_kind.get(kind, [])

    @property
    def evaluations(self) -> list[Event]:
        """Evaluations during training, in the log's order."""
        return evaluations(self.of("evaluation"))

    def last(self, kind: str, **fields: Any) -> Event | None:
        """Return the last event of a kind whose fields have these values, or None."""
        fitting: Iterator[Event] = (
            event for event in reversed(self.of(kind)) if all(event.get(key) == value for key, value in fields.items())
        )
        return next(fitting, None)

    def _mark(self, offset: int) -> tuple[tuple[int, int] | None, bytes]:
        """Return what identifies the log: its device and inode, and the last bytes before an offset."""
        try:
            descriptor = os.open(self._reader.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the reader reports the error
            return None, b""
        try:
            status, tail = os.fstat(descriptor), min(offset, 256)
            return (status.st_dev, status.st_ino), os.pread(descriptor, tail, offset - tail)
        finally:
            os.close(descriptor)


_read: dict[Path, History] = {}  # path -> history, ordered by last use
_reading = threading.Lock()


def history(path: Path) -> History:
    """Return the history of a log, after its new events were read. Calls for the same log return the same object."""
    path = path.absolute()
    with _reading:
        found = _read.pop(path, None)
        if found is None or not found.continues():
            found = History(path)
        found.refresh()
        _read[path] = found
        while len(_read) > LOGS:
            del _read[next(iter(_read))]
        return found

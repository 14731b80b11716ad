"""Cache of event logs: repeated calls in the same process read only the lines that were added to a log."""

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
    """Contents of an event log: all events except metrics, and the values of the most important metrics (`KEPT`).

    The other metrics are not kept in memory, because only experiment trackers use them.

    Args:
        path: path of `events.jsonl`, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.ended: Event | None = None  # result of `rlcore.store.events.ending`
        self.policy_steps = 0  # largest number of policy steps in metrics and checkpoints
        self.newest = 0.0  # time of the newest metrics
        self.lines: dict[str, Line] = {}  # metric in KEPT -> its logged values
        self.events: list[Event] = []  # all events except metrics, in the log's order
        self._by_kind: dict[str, list[Event]] = {}
        self._reader, self._seen_points = EventReader(path), PointFilter()
        self._file: tuple[int, int] | None = None  # device and inode of the file
        self._last = b""  # the last bytes that were read

    def refresh(self) -> None:
        """Read the events that were added to the log since the previous call."""
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
            for name, value, _, step in points((event,), self._seen_points):
                if name in KEPT:
                    self.lines.setdefault(name, Line()).add(step, value)
        self._file, self._last = self._mark(self._reader.offset)

    def continues(self) -> bool:
        """Return True if the file is still the one that was read, with or without new lines.

        If it is False, a new run has replaced the file, and all of it must be read again.
        """
        return self._file is None or (self._file, self._last) == self._mark(self._reader.offset)

    def of(self, kind: str) -> list[Event]:
        """Return all events of a kind, which must not be `metrics`, in the order of the log."""
        return self._by_kind.get(kind, [])

    @property
    def evaluations(self) -> list[Event]:
        """Evaluation events during training, without the final evaluation, in the order of the log."""
        return evaluations(self.of("evaluation"))

    def last(self, kind: str, **fields: Any) -> Event | None:
        """Return the last event of a kind in which all given fields have the given values; None if there is none."""
        fitting: Iterator[Event] = (
            event for event in reversed(self.of(kind)) if all(event.get(key) == value for key, value in fields.items())
        )
        return next(fitting, None)

    def _mark(self, offset: int) -> tuple[tuple[int, int] | None, bytes]:
        """Return data that identifies the log file: its device and inode, and up to 256 bytes before an offset.

        If another file replaces the log, at least one of them differs.
        """
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
    """Return the contents of a log, including events that were added since the previous call.

    The last 8 logs (`LOGS`) are cached: calls for the same log return the same object, with the new events added.
    """
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

"""Last events of a log, found from its end: a list of many runs parses only a few lines of each log."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from rlcore.store.events import ending, parse_event
from rlcore.store.series import RETURN, info_means

Event = dict[str, Any]
SEARCHED = 200  # metrics events that are parsed to find the last return of training episodes


class Measured(NamedTuple):
    """Last return that a log contains.

    Attributes:
        value: the mean return of an episode.
        source: "final" (final evaluation), "evaluation" (evaluation during training) or "training" (training episodes).
        info: name -> mean of the numbers that `env.info_keys` selects, in that evaluation.
    """

    value: float
    source: str
    info: Mapping[str, float] = MappingProxyType({})


class LastEvents:
    """Reader of the last events of a log; a context manager, which opens and closes the file.

    `EventLog` writes the kind of an event at the start of its line, so events of a kind are found by searching the
    bytes of the file. Damaged lines and an incomplete last line are skipped, as by `rlcore.store.events.EventReader`.

    Args:
        path: path of `events.jsonl`. A file that does not exist or cannot be read counts as an empty log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: mmap.mmap | bytes = b""

    def __enter__(self) -> LastEvents:
        """Open the log."""
        with suppress(OSError, ValueError), open(self._path, "rb") as file:  # mmap refuses an empty file
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the log."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    def last(self, kind: str, after: int = 0) -> Event | None:
        """Return the last event of a kind that starts at byte `after` or later; None if there is none."""
        found = self._find(kind, len(self._data), after)
        return found[1] if found else None

    @cached_property
    def ended(self) -> Event | None:
        """The `end` event of the run's training, None if it runs or was killed (see `rlcore.store.events.ending`)."""
        found = self._find("end", len(self._data))
        if found is None:
            return None
        place, end = found
        later = (self.last(kind, place) for kind in ("resume", "metrics", "checkpoint"))
        return ending((end, *(event for event in later if event is not None)))

    @property
    def policy_steps(self) -> int:
        """Policy steps at the end of training; if it has not ended, at the last metrics, checkpoint or end, or 0."""
        if self.ended is not None and "policy_steps" in self.ended:
            return self.ended["policy_steps"]
        events = (self.last(kind) for kind in ("metrics", "checkpoint", "end"))
        return max((event.get("policy_steps", 0) for event in events if event is not None), default=0)

    @property
    def measured(self) -> Measured | None:
        """The return in the last evaluation. Without an evaluation, the last return of training episodes, or None."""
        if (evaluation := self.last("evaluation")) is not None:
            greedy, source = evaluation["greedy"], "final" if evaluation["final"] else "evaluation"
            return Measured(greedy["mean"], source, info_means(greedy))
        place = len(self._data)
        for _ in range(SEARCHED):
            if (found := self._find("metrics", place)) is None:
                return None
            place, event = found
            if isinstance(value := event["values"].get(RETURN), int | float):
                return Measured(value, "training")
        return None

    def _find(self, kind: str, before: int, after: int = 0) -> tuple[int, Event] | None:
        """Find the last event of a kind whose line starts in the bytes `after` to `before`; return the byte and it."""
        start = f'{{"kind": "{kind}", '.encode()
        while (place := self._data.rfind(start, after, before)) >= 0:
            before, stop = place, self._data.find(b"\n", place)
            if stop < 0 or self._data[max(0, place - 1) : place] not in (b"", b"\n"):
                continue  # an incomplete last line, or text within a line
            if (event := parse_event(self._data[place:stop])) is not None:
                return place, event
        return None

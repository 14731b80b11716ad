"""Updates of a running sweep's report page: at the start, when a trial ends, and every ten seconds in between."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flows.process.signals import time_left
from flows.report.figures import Picture
from flows.runs.listeners import subscribe
from flows.sweeps.driving import Sweep
from flows.sweeps.sweep_report import draw_pictures, write_page
from rlcore.errors import first_line

SHARE = 20  # after drawing pictures for 1 s, wait at least 20 s: trials need the processor
SHARE_OF_TEXT = 5  # after writing the page for 1 s, wait at least 5 s
FRESH = 10.0  # seconds between two updates if no trial ends
PARTING = 8.0  # seconds that an interrupted sweep waits for the page thread before the last update
log = logging.getLogger(__name__)


@contextmanager
def refresh_reports(sweep: Sweep) -> Iterator[None]:
    """Context manager that updates a sweep's report page in a thread, and once more if the sweep is interrupted."""
    ended, over = threading.Event(), threading.Event()

    def keep() -> None:
        drawn: Sequence[Picture] = ()
        stale, due = True, 0.0  # True if a trial ended since the pictures were drawn; earliest time of the next drawing
        while not over.is_set():
            began = time.monotonic()
            if stale and began >= due:
                drawn, stale = _draw(sweep), False
                due = time.monotonic() + SHARE * (time.monotonic() - began)
                began = time.monotonic()
            _write(sweep, drawn=drawn)
            over.wait(SHARE_OF_TEXT * (time.monotonic() - began))
            stale = ended.wait(FRESH) or stale
            ended.clear()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind == "trial":
            ended.set()

    keeper = threading.Thread(target=keep, name="page", daemon=True)
    keeper.start()
    broken = True
    try:
        with subscribe(listener):
            yield
        broken = False
    finally:
        over.set()
        ended.set()
        keeper.join(time_left(PARTING))
        if broken and not keeper.is_alive():
            _write(sweep, broken=True)


def _draw(sweep: Sweep) -> Sequence[Picture]:
    """Draw the pictures of the trials; return no pictures if that fails."""
    try:
        return draw_pictures(sweep.folder, sweep.plan, sweep.study)
    except Exception as error:  # a failure to draw the page must not end the sweep
        _note(sweep, error)
        return ()


def _write(sweep: Sweep, broken: bool = False, drawn: Sequence[Picture] | None = None) -> None:
    try:
        write_page(sweep, whole=False, broken=broken, drawn=drawn)
    except Exception as error:  # as above
        _note(sweep, error)


def _note(sweep: Sweep, error: Exception) -> None:
    name = sweep.folder.name
    log.warning("the page of sweep %s could not be updated: %s: %s", name, type(error).__name__, first_line(error))

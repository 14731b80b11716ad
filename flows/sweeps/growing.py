"""The page of a sweep that is at work: written from its beginning, whenever a trial ends, and every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flows.process.signals import time_left
from flows.report.figures import Picture
from flows.runs.listeners import listening
from flows.sweeps.driving import Sweep
from flows.sweeps.sweep_report import draw_pictures, write_page
from rlcore.errors import first_line

SHARE = 20  # drawing pictures takes one of so many parts of the time: trials need the processor
SHARE_OF_TEXT = 5  # the same of writing the page with the pictures that there are
FRESH = 10.0  # seconds after which the page is written though no trial has ended: those at work have gone on
PARTING = 8.0  # seconds in which a sweep that is broken off draws its page once more
log = logging.getLogger(__name__)


@contextmanager
def growing(sweep: Sweep) -> Iterator[None]:
    """Keep a sweep's page as it stands inside the `with`; where it is broken off, the page is drawn a last time."""
    ended, over = threading.Event(), threading.Event()

    def keep() -> None:
        drawn: Sequence[Picture] = ()
        stale, due = True, 0.0  # trials have ended since the pictures were drawn; when they may be drawn again
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
        with listening(listener):
            yield
        broken = False
    finally:
        over.set()
        ended.set()
        keeper.join(time_left(PARTING))
        if broken and not keeper.is_alive():
            _write(sweep, broken=True)


def _draw(sweep: Sweep) -> Sequence[Picture]:
    """Draw the pictures of the trials as they are now; none if that fails."""
    try:
        return draw_pictures(sweep.folder, sweep.plan, sweep.study)
    except Exception as error:  # a page is no reason to end a sweep
        _note(sweep, error)
        return ()


def _write(sweep: Sweep, broken: bool = False, drawn: Sequence[Picture] | None = None) -> None:
    try:
        write_page(sweep, whole=False, broken=broken, drawn=drawn)
    except Exception as error:  # as above
        _note(sweep, error)


def _note(sweep: Sweep, error: Exception) -> None:
    name = sweep.folder.name
    log.warning("the page of sweep %s is not drawn: %s: %s", name, type(error).__name__, first_line(error))

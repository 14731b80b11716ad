"""The page of a sweep that is at work: there from its beginning, and drawn anew as its trials end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.process.signals import time_left
from flows.runs.listeners import listening
from flows.sweeps.driving import Sweep
from flows.sweeps.sweep_report import write_page
from rlcore.errors import first_line

SHARE = 20  # the page takes one of so many parts of the time: trials need the processor
PARTING = 8.0  # seconds in which a sweep that is broken off draws its page once more
log = logging.getLogger(__name__)


@contextmanager
def growing(sweep: Sweep) -> Iterator[None]:
    """Keep a sweep's page as it stands inside the `with`; where it is broken off, the page is drawn a last time."""
    ended, over = threading.Event(), threading.Event()
    ended.set()

    def keep() -> None:
        while not over.is_set():
            ended.wait()
            ended.clear()
            if not over.is_set():
                over.wait(SHARE * _draw(sweep))

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
            _draw(sweep, broken=True)


def _draw(sweep: Sweep, broken: bool = False) -> float:
    """Draw the page; the seconds that it took."""
    began = time.monotonic()
    try:
        write_page(sweep, whole=False, broken=broken)
    except Exception as error:  # a page is no reason to end a sweep
        log.warning(
            "the page of sweep %s is not drawn: %s: %s", sweep.folder.name, type(error).__name__, first_line(error)
        )
    return time.monotonic() - began

"""Repetition of failed writes, so that data in memory is not lost if the disk is full for a short time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from rlcore.errors import DiskFault

PAUSES = (1.0, 2.0)  # seconds before each retry; short, because a trainer has little time to save after a signal
log = logging.getLogger(__name__)
Result = TypeVar("Result")


def retry(write: Callable[[], Result]) -> Result:
    """Call `write` and return its result; if it raises `DiskFault`, repeat the call after 1 s and again after 2 s."""
    for pause in PAUSES:
        try:
            return write()
        except DiskFault as fault:
            log.warning("%s; retrying in %g s", fault, pause)
            time.sleep(pause)
    return write()

"""Patience with a disk: what is in memory is not given up because it is full for a moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from rlcore.errors import DiskFault

PAUSES = (1.0, 2.0)  # seconds between the tries; all of them fit well into the time that a signal leaves a trainer
log = logging.getLogger(__name__)
Result = TypeVar("Result")


def patiently(write: Callable[[], Result]) -> Result:
    """Call `write`, again a few times and seconds apart while it raises `DiskFault`; gives what it returns."""
    for pause in PAUSES:
        try:
            return write()
        except DiskFault as fault:
            log.warning("%s; trying again in %g s", fault, pause)
            time.sleep(pause)
    return write()

"""Clock that measures the time of training; it is stopped while functions are compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.system.lifeline import children_seconds


def clock() -> tuple[float, float]:
    """Return wall time, and CPU time of this process and its children, in seconds, without the time in `not_training`.

    Only differences of two results are meaningful.
    """
    return wall(), time.process_time() + children_seconds() - _spent[1]


def wall() -> float:
    """Return wall time in seconds, without the time in `not_training`; only differences are meaningful."""
    return time.perf_counter() - _spent[0]


_spent = [0.0, 0.0]


@contextmanager
def not_training() -> Iterator[None]:
    """Context manager in which the training clock is stopped."""
    began = clock()
    try:
        yield
    finally:  # time of an inner `not_training` is not in this difference, because the clock was stopped
        wall, cpu = clock()
        _spent[:] = _spent[0] + wall - began[0], _spent[1] + cpu - began[1]

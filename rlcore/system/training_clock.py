"""Clock of the training time, which stops while code is compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.system.lifeline import children_seconds


def clock() -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this process and its children, without those inside `not_training`."""
    return wall(), time.process_time() + children_seconds() - _spent[1]


def wall() -> float:
    """Return wall seconds, without those inside `not_training`."""
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

"""Clock of a training, which stands still while code is built: a first build is no training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.system.lifeline import children_seconds


def clock() -> tuple[float, float]:
    """Return seconds of a clock, and processor seconds of this process and its children, without `not_training`'s."""
    return wall(), time.process_time() + children_seconds() - _spent[1]


def wall() -> float:
    """Return seconds of a clock, without those spent within `not_training`."""
    return time.perf_counter() - _spent[0]


_spent = [0.0, 0.0]


@contextmanager
def not_training() -> Iterator[None]:
    """Within it the clock of the training stands still."""
    began = clock()
    try:
        yield
    finally:  # what was spent within is counted already: the clock has stood still
        wall, cpu = clock()
        _spent[:] = _spent[0] + wall - began[0], _spent[1] + cpu - began[1]

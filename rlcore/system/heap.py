"""Return of free memory of the C heap to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Return free pages of the heap to the system, if the C library has `malloc_trim`.

    Compiled functions allocate aligned memory, and glibc reuses little of it after it is freed. A heap with 120 MB in
    use had grown to 380 MB after ten thousand steps of SAC, and continued to grow.
    """
    _malloc_trim()(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int]:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)

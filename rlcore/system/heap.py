"""Release of unused heap memory to the operating system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Give free pages of the heap back to the operating system, with `malloc_trim` if the C library has it.

    Otherwise the memory of a training would grow: compiled functions allocate aligned memory, and glibc reuses little
    of it after it was freed. After ten thousand steps of SAC, the heap had 380 MB, of which only 120 MB were in use.
    """
    _malloc_trim()(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int]:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)

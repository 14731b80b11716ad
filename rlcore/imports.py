"""Imports of large libraries. Imports nothing heavy itself."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports(module: str) -> Iterator[None]:
    """Import without looking for garbage, then leave out of every later look what is there now.

    Modules make hundreds of thousands of objects, and all of them stay. Python looks through them again and again while
    there are more, and once more at its end: up to a third of the processor time of a short process.

    Args:
        module: imported inside the `with`; where that is done already, nothing changes.

    Yields:
        Nothing.
    """
    if module in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

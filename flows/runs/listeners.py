"""Who in this process is told how a run is going: the command line's progress line, a notebook, a test.

A Prefect task cannot be handed a callback (its parameters are JSON), so whoever wants to watch registers here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Watcher = Callable[[str, dict[str, Any]], None]

_watchers: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Have `watcher(kind, facts)` called inside the `with`.

    Args:
        watcher: gets `progress` {env_steps, return, elapsed} after each iteration, and `baseline`, `checkpoint`,
            `evaluation` and `registered` with what the stage gave.

    Yields:
        Nothing.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def tell(kind: str, facts: dict[str, Any]) -> None:
    """Tell all watchers."""
    for watcher in tuple(_watchers):  # one may leave while it is told
        watcher(kind, facts)

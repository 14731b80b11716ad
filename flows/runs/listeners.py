"""Listeners to how a run is going: the terminal, a flow run's log, the mirrors, a notebook, a test.

A Prefect task cannot be handed a callback (its parameters are JSON), so whoever wants to hear of a run listens here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, dict[str, Any]], None]

_listeners: list[Listener] = []


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Have `listener(kind, facts)` called inside the `with`.

    Kinds: `progress` {policy_steps, return, elapsed} after an iteration; `work` {doing, done, total, unit} of long
    work; `stage` {doing}, a sentence; `baseline`, `checkpoint`, `evaluation` and `registered` with what was made.
    Of many runs: `job` {label, number}, with the progress of one of them or {doing}; `ended` {label, number, state,
    sentence}; `trial` {number, label, state, value, sentence}; `phase` {doing, total}, when other jobs begin.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def episode_reporter(doing: str) -> Callable[[int, int], None]:
    """Reporter of episodes as they are played: to be called with how many are done, and of how many."""
    return lambda done, total: emit("work", {"doing": doing, "done": done, "total": total, "unit": "episodes"})


def emit(kind: str, facts: dict[str, Any]) -> None:
    """Tell all listeners."""
    for listener in tuple(_listeners):  # one may leave while it is told
        listener(kind, facts)

"""Listeners to the progress of runs, for the terminal, a flow run's log, mirrors, notebooks and tests.

A Prefect task cannot take a callback because its parameters are JSON, so code that follows a run subscribes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, dict[str, Any]], None]

_listeners: list[Listener] = []


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Call `listener(kind, facts)` for every event inside the `with`.

    Kinds for one run: `progress` {policy_steps, return, elapsed} after an iteration; `work` {doing, done, total, unit}
    during long work; `stage` {doing}, a message; `baseline`, `checkpoint`, `evaluation` and `registered` with the
    stage's result. Kinds for several runs: `job` {label, number} with a run's progress or {doing}; `ended` {label,
    number, state, sentence}; `trial` {number, label, state, value, sentence}; `phase` {doing, total} before new jobs.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def episode_reporter(doing: str) -> Callable[[int, int], None]:
    """Return a function (episodes done, total episodes) that emits the progress of an evaluation."""
    return lambda done, total: emit("work", {"doing": doing, "done": done, "total": total, "unit": "episodes"})


def emit(kind: str, facts: dict[str, Any]) -> None:
    """Call all listeners with an event."""
    for listener in tuple(_listeners):  # a listener may unsubscribe during its call
        listener(kind, facts)

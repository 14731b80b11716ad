"""Listeners that are called with the progress of runs, for the terminal, logs, mirrors, notebooks and tests.

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
    """Inside the `with`, call `listener(kind, facts)` for every event. `facts` is a dict; its keys depend on `kind`.

    Kinds of events of one run: `progress` {policy_steps, return, elapsed} after a training iteration. `work` {doing,
    done, total, unit} during work that takes long. `stage` {doing}, where `doing` is a message. `baseline`,
    `checkpoint`, `evaluation` and `registered`, each with the result of the stage.

    Kinds of events of several runs: `job` {label, number} with the progress of one run or with {doing}. `ended` {label,
    number, state, sentence} at the end of a run. `trial` {number, label, state, value, sentence} for a trial of a
    sweep. `phase` {doing, total} before new jobs.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def episode_reporter(doing: str) -> Callable[[int, int], None]:
    """Return a function that emits the progress of an evaluation.

    Its arguments are the number of finished episodes and the number of all episodes.
    """
    return lambda done, total: emit("work", {"doing": doing, "done": done, "total": total, "unit": "episodes"})


def emit(kind: str, facts: dict[str, Any]) -> None:
    """Call all listeners with an event."""
    for listener in tuple(_listeners):  # a listener may unsubscribe during its call
        listener(kind, facts)

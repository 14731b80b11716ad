"""Listeners that are called with the progress of runs, for the terminal, logs, MLflow, notebooks and tests.

The parameters of a Prefect task are JSON values, so a task cannot take a callback. Code that wants to follow the
progress of a run therefore registers a listener with `subscribe`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, dict[str, Any]], None]
SLOW = 4.0  # seconds; a shorter wait is not announced

_listeners: list[Listener] = []


@contextmanager
def subscribe(listener: Listener) -> Iterator[None]:
    """Context manager in which `listener(kind, facts)` is called for every event; `facts` is a dict.

    Events of a single run, as kind {keys of facts}:

    - progress {policy_steps, return, elapsed}: after a training iteration
    - work {doing, done, total, unit}: about once per second during other long work, such as an evaluation
    - stage {doing}: a message to show
    - interrupted {doing}: after an interruption, a message about the last checkpoint
    - baseline, checkpoint, evaluation, registered: after the stage, with its result as facts

    Events of a command that executes several runs (jobs), such as a sweep:

    - phase {doing, total}: before `total` jobs are started
    - job {label, number, ...}: progress of one job, either with the keys of `progress` or with {doing}
    - ended {label, number, state, sentence}: at the end of a job
    - trial {number, label, state, value, sentence}: at the end of a trial of a sweep
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


@contextmanager
def announce(waiting_for: str, timer: Callable[..., threading.Timer] = threading.Timer) -> Iterator[None]:
    """Context manager that emits a message (`stage`) if its body takes longer than `SLOW` seconds.

    Args:
        waiting_for: what the body waits for, for example "importing Prefect".
        timer: class of the timer, which calls the listeners in a thread.

    Yields:
        Nothing.
    """
    message = timer(SLOW, emit, ("stage", {"doing": f"{waiting_for} ..."}))
    message.daemon = True
    message.start()
    try:
        yield
    finally:
        message.cancel()
        message.join()  # the body may be followed by a fork

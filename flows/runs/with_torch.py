"""Calls of functions that need torch. The run's trainer executes them, because importing torch takes a second."""

from __future__ import annotations

from typing import Any

from flows.runs import trainer
from flows.runs.listeners import episode_reporter, subscribe
from rlcore.store.directory import RunDirectory
from rlcore.train.calls import ProgressTimer, find


def with_torch(run: RunDirectory, function: str, *arguments: Any, doing: str = "", **more: Any) -> Any:
    """Call a function in the run's trainer, or in this process if it drives no trainer.

    Exceptions of the function are raised in this process. Events that the function emits reach the listeners of this
    process. If the trainer has died, a new one is started.

    Args:
        run: the run; it is also the function's first argument.
        function: `module.name`.
        *arguments: further arguments, JSON.
        doing: label of the progress of long work; if it is set, the function takes `on_progress`.
        **more: keyword arguments, JSON.

    Returns:
        The function's result, JSON.
    """
    if not trainer.has_trainer(run):
        return _call(function, run, arguments, doing, more)
    place = f"{__name__}.{answer.__name__}"
    return trainer.running_trainer(run).call(place, function, str(run.path), arguments, doing, more)


def answer(say: Any, function: str, run: str, arguments: list[Any], doing: str, more: dict[str, Any]) -> Any:
    """Execute a call of `with_torch` in the trainer process.

    The events that the function emits are sent to the calling process; progress is sent once per second.
    """
    pace = ProgressTimer()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if pace.due(always=kind != "work" or facts["done"] == facts["total"]):
            say("told", kind=kind, facts=facts)

    with subscribe(listener):
        return _call(function, RunDirectory(run), arguments, doing, more)


def _call(function: str, run: RunDirectory, arguments: Any, doing: str, more: dict[str, Any]) -> Any:
    progress = {"on_progress": episode_reporter(doing)} if doing else {}
    return find(function)(run, *arguments, **more, **progress)

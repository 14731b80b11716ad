"""Calls of functions that need torch. The run's trainer executes them, because importing torch takes a second."""

from __future__ import annotations

from typing import Any

from flows.runs import trainer
from flows.runs.listeners import episode_reporter, subscribe
from rlcore.store.directory import RunDirectory
from rlcore.train.calls import ProgressTimer, find


def with_torch(run: RunDirectory, function: str, *arguments: Any, doing: str = "", **more: Any) -> Any:
    """Call a function in the trainer process of a run, or in this process if it has not started a trainer process.

    Exceptions of the function are raised in this process. Events that the function emits reach the listeners of this
    process. If the trainer process has died, a new one is started.

    Args:
        run: the run; it is also passed to the function as its first argument.
        function: name of the function, as "module.name".
        *arguments: further arguments of the function, as JSON values.
        doing: label of the function's progress for display. If it is set, the function is also called with a progress
            callback as the keyword argument `on_progress`.
        **more: keyword arguments of the function, as JSON values.

    Returns:
        The function's result, as a JSON value.
    """
    if not trainer.has_trainer(run):
        return _call(function, run, arguments, doing, more)
    remote = f"{__name__}.{answer.__name__}"
    return trainer.expect_trainer(run).call(remote, function, str(run.path), arguments, doing, more)


def answer(send: Any, function: str, run: str, arguments: list[Any], doing: str, more: dict[str, Any]) -> Any:
    """Execute a call of `with_torch` in the trainer process; the parameters are those of `with_torch`.

    `send` sends an event to the calling process. All events that the function emits are sent, but events that report
    progress (kind "work") only once per second.
    """
    timer = ProgressTimer()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if timer.due(always=kind != "work" or facts["done"] == facts["total"]):
            send("emitted", kind=kind, facts=facts)

    with subscribe(listener):
        return _call(function, RunDirectory(run), arguments, doing, more)


def _call(function: str, run: RunDirectory, arguments: Any, doing: str, more: dict[str, Any]) -> Any:
    progress = {"on_progress": episode_reporter(doing)} if doing else {}
    return find(function)(run, *arguments, **more, **progress)

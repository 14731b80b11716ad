"""Work of a run's stages that needs torch, done by its trainer, which has it: to import torch again takes a second."""

from __future__ import annotations

from typing import Any

from flows.runs import trainer
from flows.runs.listeners import episode_reporter, subscribe
from rlcore.store.directory import RunDirectory
from rlcore.train.calls import ProgressTimer, find


def with_torch(run: RunDirectory, function: str, *arguments: Any, doing: str = "", **more: Any) -> Any:
    """Call a function in the run's trainer, or here where this process drives none; raises what it raises.

    What it tells is heard here. A trainer that has died meanwhile is followed by another.

    Args:
        run: whose trainer; the function's first argument.
        function: `module.name`.
        *arguments: for it; JSON, as the result is.
        doing: what long work is called as it is told; the function then takes `on_progress`.
        **more: for it, by name.

    Returns:
        The function's result.
    """
    if not trainer.has_trainer(run):
        return _call(function, run, arguments, doing, more)
    place = f"{__name__}.{answer.__name__}"
    return trainer.running_trainer(run).call(place, function, str(run.path), arguments, doing, more)


def answer(say: Any, function: str, run: str, arguments: list[Any], doing: str, more: dict[str, Any]) -> Any:
    """In the trainer: do what `with_torch` asks for, say what is told meanwhile, a line a second, and how it ended."""
    pace = ProgressTimer()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if pace.due(always=kind != "work" or facts["done"] == facts["total"]):
            say("told", kind=kind, facts=facts)

    with subscribe(listener):
        return _call(function, RunDirectory(run), arguments, doing, more)


def _call(function: str, run: RunDirectory, arguments: Any, doing: str, more: dict[str, Any]) -> Any:
    told = {"on_progress": episode_reporter(doing)} if doing else {}
    return find(function)(run, *arguments, **more, **told)

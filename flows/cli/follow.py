"""A run shown at the terminal while a command works on it: one progress line, and a line for what happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.cli.progress import Progress
from flows.report.sentences import describe
from flows.runs.listeners import listening
from rlcore.store.directory import RunDirectory


@contextmanager
def following(run: RunDirectory) -> Iterator[None]:
    """Show what is told of a run inside the `with`."""
    progress = Progress(run.read_config()["algo"]["total_steps"])

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress":
            rate = facts["env_steps"] / facts["elapsed"] if facts["elapsed"] > 0 else 0.0
            progress.update(facts["env_steps"], facts["return"], rate, facts["elapsed"])
        elif kind == "work":
            progress.work(facts["doing"], facts["done"], facts["total"])
        elif (sentence := describe(kind, facts)) is not None:
            progress.note(sentence)

    try:
        with listening(listener):
            yield
    finally:
        progress.close()


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Keep Prefect's tracebacks off the terminal: the command tells the sentence; Prefect's history has the rest."""
    names = ("prefect.flow_runs", "prefect.task_runs")
    handlers = logging.getLogger().handlers + logging.getLogger("prefect").handlers

    def elsewhere(record: logging.LogRecord) -> bool:
        return not record.name.startswith(names)

    for handler in handlers:
        handler.addFilter(elsewhere)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(elsewhere)

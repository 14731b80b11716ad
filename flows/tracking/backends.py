"""The tracking backends: where a run is shown, each brought up to date from the event log, which is the truth.

To add one: a function `bring(run, events)` in a file of this folder, a line in BACKENDS, and its name among the choices
of `metric.logger.name` (rlcore/config/groups.py). It adds what its backend lacks and is called again and again: while
training, after a kill, by another process, never by two at once.
"""

from __future__ import annotations

from collections.abc import Callable

from flows.process.locks import locked
from flows.settings import configure_environment
from flows.tracking import mlflow_run
from flows.tracking.tensorboard_csv import bring_csv, bring_tensorboard
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.store.series import Event

Backend = Callable[[RunDirectory, list[Event]], object]
BACKENDS: dict[str, Backend] = {"tensorboard": bring_tensorboard, "csv": bring_csv}


def bring(run: RunDirectory) -> str:
    """Bring every backend of a run up to date: the one `metric.logger.name` names, and MLflow, which has every run.

    Gives the id of the run in MLflow; raises what `flows.tracking.mlflow_run.bring` does.
    """
    configure_environment()
    with locked(run.path / ".mlflow" / "lock"):
        events = list(read_events(run.events))
        chosen = BACKENDS.get(run.read_config()["metric"]["logger"]["name"])
        if chosen is not None and events:
            chosen(run, events)
        return mlflow_run.bring(run, events)

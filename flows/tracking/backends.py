"""The tracking backends: where a run is shown, each brought up to date from the event log, which is the truth.

To add one: a function `bring(run, news)` in a file of this folder, a line in BACKENDS, and its name among the choices
of `metric.logger.name` (rlcore/config/groups.py). It adds what its backend lacks, of all points at first and then of
what is new, and is called again and again: while training, after a kill, by another process, never by two at once.
"""

from __future__ import annotations

from collections.abc import Callable

from flows.process.locks import hold
from flows.settings import configure_environment
from flows.tracking import mlflow_run
from flows.tracking.news import NewEvents
from flows.tracking.tensorboard_csv import write_csv, write_tensorboard
from rlcore.store.directory import RunDirectory

Backend = Callable[[RunDirectory, NewEvents], object]
BACKENDS: dict[str, Backend] = {"tensorboard": write_tensorboard, "csv": write_csv}

_READ: dict[tuple[str, str], NewEvents] = {}  # runs that this process has brought up to date


def update_backends(run: RunDirectory) -> str:
    """Bring every backend of a run up to date: the one `metric.logger.name` names, and MLflow, which has every run.

    Gives the id of the run in MLflow; raises what `flows.tracking.mlflow_run.bring` does.
    """
    configure_environment()
    with hold(run.path / ".mlflow" / "lock"):
        key = str(run.path.absolute()), run.read_identity()["run_id"]  # a folder may be given to another run
        news = (
            _READ.pop(key, None) or NewEvents(run)
        ).read()  # popped: what a failed call missed, a whole one makes good
        chosen = BACKENDS.get(run.read_config()["metric"]["logger"]["name"])
        if chosen is not None and news.first is not None:
            chosen(run, news)
        run_id = mlflow_run.update_mlflow(run, news)
        if news.ended is None:  # one that has ended is seldom asked for again, and its steps are many
            _READ[key] = news
        return run_id

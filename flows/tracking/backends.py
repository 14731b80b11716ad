"""Tracking backends (MLflow, TensorBoard, CSV). All their values come from the event log of the run.

To add a backend whose data can be read back, write a function `update(run, news)` in a file of this folder, and add it
to BACKENDS. Add its name to BUILT_IN (rlcore/config/loggers.py). Other loggers are in loggers.py.

The function writes the logged values that its backend does not have yet: all values at the first call, only new values
at later calls. It is called repeatedly: during training, after a kill, and from different processes. Two processes
never call it at the same time.
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

_READ: dict[tuple[str, str], NewEvents] = {}  # runs that this process has updated


def update_backends(run: RunDirectory) -> str:
    """Update the tracking backends of a run, and return the id of the run in MLflow.

    MLflow is updated for every run; `metric.logger.name` may select a second backend. Raises the exceptions of
    `flows.tracking.mlflow_run.update_mlflow`.
    """
    configure_environment()
    with hold(run.path / ".mlflow" / "lock"):
        key = str(run.path.absolute()), run.read_identity()["run_id"]  # a folder may be reused by another run
        news = (
            _READ.pop(key, None) or NewEvents(run)
        ).read()  # popped: after a failed call, the next one reads the whole log again
        chosen = BACKENDS.get(run.read_config()["metric"]["logger"]["name"])
        if chosen is not None and news.first is not None:
            chosen(run, news)
        run_id = mlflow_run.update_mlflow(run, news)
        if news.ended is None:  # an ended run is rarely updated again, and its points take memory
            _READ[key] = news
        return run_id

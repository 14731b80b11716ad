"""Parent run of a sweep in MLflow, with its metrics and pictures; the runs of its trials are its children."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flows.process.signals import is_interrupted, time_left
from flows.sweeps.folder import SweepFolder
from flows.tracking.mlflow_run import experiment_of
from flows.tracking.mlflow_store import reachable_store, store_uri, user
from flows.tracking.mlflow_sweep import OF_SWEEP, PARENT, SWEEP, find_tagged, run_of_sweep
from rlcore.errors import first_line

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

NOTE = "mlflow.note.content"
PARTING = 5.0  # seconds that an interrupted sweep waits until the parent run exists, to set its status
log = logging.getLogger(__name__)
_making = threading.Lock()


@contextmanager
def update_parent(folder: SweepFolder, tree: Mapping[str, Any]) -> Iterator[None]:
    """Context manager that keeps the status of a sweep's parent run in MLflow up to date.

    The status is RUNNING inside the context. If the sweep is interrupted or fails, it becomes KILLED or FAILED. The
    parent run is created in a thread, because MLflow takes seconds to import. If MLflow cannot be reached,
    this context reports nothing; `mirror_sweep` reports it at the end of the sweep. `tree` is the config of one of the
    sweep's trials, which contains the address of MLflow's database or server.
    """
    making = threading.Thread(target=_try, args=(lambda: _run_of(folder, tree),), name="mlflow", daemon=True)
    making.start()
    try:
        yield
    except BaseException as error:
        making.join(time_left(PARTING))
        if not making.is_alive():
            status = "FAILED" if isinstance(error, Exception) and not is_interrupted() else "KILLED"
            _try(lambda: _end(folder, tree, status))
        raise


def mirror_sweep(
    folder: SweepFolder, tree: Mapping[str, Any], status: Mapping[str, Any], settings: Mapping[str, Any], note: str
) -> str:
    """Write the results of a finished sweep to MLflow, and set the status of the parent run to FINISHED.

    Parameters and metrics that MLflow already has are skipped. The files of `folder.files` become artifacts.

    Args:
        folder: folders of the sweep.
        tree: config of one of the sweep's trials, which contains the address of MLflow's database or server.
        status: result of `flows.sweeps.status.status`.
        settings: settings of the sweep, logged as parameters.
        note: description of the parent run, in Markdown.

    Returns:
        Id of the parent run.
    """
    client, parent_run = _run_of(folder, tree)
    parent = parent_run.info.run_id
    for child in find_tagged(client, OF_SWEEP, folder.id):
        if PARENT not in child.data.tags:  # the child was created before the parent run
            client.set_tag(child.info.run_id, PARENT, parent)
    for key, value in settings.items():
        if key not in parent_run.data.params:
            client.log_param(parent, key, str(value)[:500])
    _log_values(client, parent, status)
    client.set_tag(parent, NOTE, note)
    for file in folder.files:
        client.log_artifact(parent, str(file))
    client.set_terminated(parent)
    return parent


def note_killed(folder: SweepFolder, tree: Mapping[str, Any]) -> None:
    """Set a sweep's status in MLflow to KILLED if the status is RUNNING although no process runs the sweep."""
    if not folder.is_driven:
        _try(lambda: _end(folder, tree, "KILLED"))


def _run_of(folder: SweepFolder, tree: Mapping[str, Any]) -> tuple[MlflowClient, Run]:
    """Return a client of MLflow, and the sweep's parent run with status RUNNING; create the run if needed."""
    client = reachable_store(store_uri(tree))
    with _making:
        parent_run = run_of_sweep(client, folder.id)
        if parent_run is None:
            tags = {SWEEP: folder.id, "group": folder.name, "mlflow.user": user()}
            tags |= {"mlflow.source.name": "shepherd sweep", "mlflow.source.type": "LOCAL"}
            parent_run = client.create_run(experiment_of(client, tree), tags=tags, run_name=f"sweep {folder.name}")
    if parent_run.info.status != "RUNNING":
        client.update_run(parent_run.info.run_id, "RUNNING")
    return client, parent_run


def _end(folder: SweepFolder, tree: Mapping[str, Any], status: str) -> None:
    client = reachable_store(store_uri(tree))
    parent_run = run_of_sweep(client, folder.id)
    if parent_run is not None and parent_run.info.status == "RUNNING":
        client.set_terminated(parent_run.info.run_id, status)


def _try(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:  # errors of an unreachable store have many types, and must not end the sweep
        log.debug("MLflow could not be updated with the sweep: %s: %s", type(error).__name__, first_line(error))


def _log_values(client: MlflowClient, parent: str, status: Mapping[str, Any]) -> None:
    """Log two metrics with the trial number as step: `value` of this trial, and `best`, the best value up to it."""
    from mlflow.entities import Metric

    there = {metric.step for metric in client.get_metric_history(parent, "value")}
    best, now, missing = None, int(time.time() * 1000), []
    for trial in status["trials"]:
        if trial["state"] != "complete":
            continue
        best = trial["value"] if best is None else max(best, trial["value"])
        if trial["number"] not in there:
            values = {"value": trial["value"], "best": best}
            missing += [Metric(name, value, now, trial["number"]) for name, value in values.items()]
    for start in range(0, len(missing), 1000):  # MLflow's limit for one call
        client.log_batch(parent, metrics=missing[start : start + 1000])

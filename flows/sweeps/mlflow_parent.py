"""A sweep's own run in MLflow, there from its beginning: figures and pictures, and below it the runs of its trials."""

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
PARTING = 5.0  # seconds in which a sweep that is broken off says so
log = logging.getLogger(__name__)
_making = threading.Lock()


@contextmanager
def show(folder: SweepFolder, tree: Mapping[str, Any]) -> Iterator[None]:
    """Have MLflow show a sweep as running inside the `with`; killed or failed where it is broken off.

    The run is made in a thread, since MLflow takes seconds to import: nothing waits for it. A store that is away is
    told at the sweep's end, when its figures are to be brought.

    Args:
        folder: the sweep's.
        tree: config of one of its trials, which says where its runs are.
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


def bring(
    folder: SweepFolder, tree: Mapping[str, Any], status: Mapping[str, Any], settings: Mapping[str, Any], note: str
) -> str:
    """Bring MLflow up to date with a sweep that is over; gives the id of its run.

    What MLflow has already is not written again. The files of `folder.files` become artifacts.
    """
    client, found = _run_of(folder, tree)
    parent = found.info.run_id
    for child in find_tagged(client, OF_SWEEP, folder.id):
        if PARENT not in child.data.tags:  # it was quicker
            client.set_tag(child.info.run_id, PARENT, parent)
    for key, value in settings.items():
        if key not in found.data.params:
            client.log_param(parent, key, str(value)[:500])
    _log_values(client, parent, status)
    client.set_tag(parent, NOTE, note)
    for file in folder.files:
        client.log_artifact(parent, str(file))
    client.set_terminated(parent)
    return parent


def note_killed(folder: SweepFolder, tree: Mapping[str, Any]) -> None:
    """Have a sweep that runs, as MLflow says, and that nobody drives, count as killed there."""
    if not folder.is_driven:
        _try(lambda: _end(folder, tree, "KILLED"))


def _run_of(folder: SweepFolder, tree: Mapping[str, Any]) -> tuple[MlflowClient, Run]:
    """A client of the store, and the sweep's run there, made where it is not, and running."""
    client = reachable_store(store_uri(tree))
    with _making:
        found = run_of_sweep(client, folder.id)
        if found is None:
            tags = {SWEEP: folder.id, "group": folder.name, "mlflow.user": user()}
            tags |= {"mlflow.source.name": "shepherd sweep", "mlflow.source.type": "LOCAL"}
            found = client.create_run(experiment_of(client, tree), tags=tags, run_name=f"sweep {folder.name}")
    if found.info.status != "RUNNING":
        client.update_run(found.info.run_id, "RUNNING")
    return client, found


def _end(folder: SweepFolder, tree: Mapping[str, Any], status: str) -> None:
    client = reachable_store(store_uri(tree))
    found = run_of_sweep(client, folder.id)
    if found is not None and found.info.status == "RUNNING":
        client.set_terminated(found.info.run_id, status)


def _try(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:  # whatever a store that is away makes of it: no sweep ends over that
        log.debug("the sweep is not in MLflow: %s: %s", type(error).__name__, first_line(error))


def _log_values(client: MlflowClient, parent: str, status: Mapping[str, Any]) -> None:
    """The value of each trial, and the best so far, by the trial's number."""
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
    for start in range(0, len(missing), 1000):  # the most that MLflow takes in one call
        client.log_batch(parent, metrics=missing[start : start + 1000])

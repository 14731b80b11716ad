"""A sweep in MLflow: a run of its own with the figures and pictures, the runs of its trials below it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.settings import tracking_uri
from flows.sweeps.folder import SweepFolder
from flows.tracking.mlflow_store import connect, pages, prepare_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TAG, PARENT, NOTE = "shepherd.sweep", "mlflow.parentRunId", "mlflow.note.content"
SUFFIXES = ("", "-winner", "-default")  # of the groups of a sweep's runs


def bring(folder: SweepFolder, status: Mapping[str, Any], settings: Mapping[str, Any], note: str) -> str | None:
    """Bring MLflow up to date with a sweep whose runs are there; gives the id of its run, None without runs there.

    What MLflow has already is not written again. The files of `folder.files` become artifacts.
    """
    prepare_store(tracking_uri())
    client = connect(tracking_uri())
    places = [e.experiment_id for page in pages(client.search_experiments) for e in page]
    children = [run for suffix in SUFFIXES for run in _runs(client, places, "group", folder.name + suffix)]
    if not children:
        return None
    found = next(iter(_runs(client, places, TAG, folder.id)), None)
    if found is None:
        tags = {TAG: folder.id, "group": folder.name, "mlflow.source.name": "shepherd sweep"}
        found = client.create_run(children[0].info.experiment_id, tags=tags, run_name=f"sweep {folder.name}")
    parent = found.info.run_id
    for child in children:
        if PARENT not in child.data.tags and child.info.run_id != parent:
            client.set_tag(child.info.run_id, PARENT, parent)
            place = Path(child.data.tags.get("shepherd.run_dir", "")).parent.name
            client.set_tag(child.info.run_id, "trial", place.removeprefix("trial_").lstrip("0") or place[-1:])
    for key, value in settings.items():
        if key not in found.data.params:
            client.log_param(parent, key, str(value)[:500])
    _log_values(client, parent, status)
    client.set_tag(parent, NOTE, note)
    for file in folder.files:
        client.log_artifact(parent, str(file))
    client.set_terminated(parent)
    return parent


def _log_values(client: MlflowClient, parent: str, status: Mapping[str, Any]) -> None:
    """The value of each trial, and the best so far, by the trial's number."""
    there = {metric.step for metric in client.get_metric_history(parent, "value")}
    best = None
    for trial in status["trials"]:
        if trial["state"] != "complete":
            continue
        best = trial["value"] if best is None else max(best, trial["value"])
        if trial["number"] not in there:
            client.log_metric(parent, "value", trial["value"], step=trial["number"])
            client.log_metric(parent, "best", best, step=trial["number"])


def _runs(client: MlflowClient, experiments: list[str], tag: str, value: str) -> list[Run]:
    query = f"tags.`{tag}` = '{value}'"
    return [run for page in pages(client.search_runs, experiments, query) for run in page]

"""A sweep in MLflow: its run is found by the sweep's id, and those of its trials say whose they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flows.tracking.mlflow_store import pages
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SWEEP = "shepherd.sweep"  # tag of a sweep's run: the sweep's id
OF_SWEEP = "shepherd.of_sweep"  # tag of the runs of its trials and of its confirmation: the same
PARENT = "mlflow.parentRunId"  # MLflow's own name for the run that another lies below


def tags_of_trial(client: MlflowClient, run: RunDirectory) -> dict[str, str]:
    """Tags in which the run of a trial says whose it is: the trial, the sweep's id and run; nothing of another run."""
    folder = run.path.absolute().parent
    noted = folder.parent / "sweep.json"  # of flows.sweeps.folder: the plan, beside its runs
    if not noted.exists():
        return {}
    sweep = json.loads(noted.read_text())["id"]
    tags = {"trial": folder.name.removeprefix("trial_").lstrip("0") or "0", OF_SWEEP: sweep}
    parent = run_of_sweep(client, sweep)
    return tags | ({PARENT: parent.info.run_id} if parent else {})


def run_of_sweep(client: MlflowClient, sweep: str) -> Run | None:
    """A sweep's own run, by the sweep's id."""
    return next(iter(find_tagged(client, SWEEP, sweep)), None)


def find_tagged(client: MlflowClient, tag: str, value: str) -> list[Run]:
    """The runs of all experiments that have a tag with this value."""
    query = f"tags.`{tag}` = '{value}'"
    places = [experiment.experiment_id for page in pages(client.search_experiments) for experiment in page]
    return [run for page in pages(client.search_runs, places, query) for run in page] if places else []

"""Sweeps in MLflow: one parent run for the sweep, and a child run for each run of a trial.

Two tags contain the id of the sweep: the parent run has one of them, and the child runs have the other one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flows.tracking.mlflow_store import pages
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SWEEP = "shepherd.sweep"  # tag of a sweep's run with the sweep's id
OF_SWEEP = "shepherd.of_sweep"  # tag of the runs of its trials and confirmation with the sweep's id
PARENT = "mlflow.parentRunId"  # MLflow's tag for the parent of a run


def tags_of_trial(client: MlflowClient, run: RunDirectory) -> dict[str, str]:
    """Return the MLflow tags of a run that belongs to a sweep: trial number, id of the sweep, id of the parent run.

    The dict is empty if the run does not belong to a sweep.
    """
    folder = run.path.absolute().parent
    plan = folder.parent / "sweep.json"  # written by flows.sweeps.folder
    if not plan.exists():
        return {}
    sweep = json.loads(plan.read_text())["id"]
    tags = {"trial": folder.name.removeprefix("trial_").lstrip("0") or "0", OF_SWEEP: sweep}
    parent = run_of_sweep(client, sweep)
    return tags | ({PARENT: parent.info.run_id} if parent else {})


def run_of_sweep(client: MlflowClient, sweep: str) -> Run | None:
    """Return the MLflow run that represents the sweep with this id (the parent run); None if there is none."""
    return next(iter(find_tagged(client, SWEEP, sweep)), None)


def find_tagged(client: MlflowClient, tag: str, value: str) -> list[Run]:
    """Return all runs, in all experiments, that have this tag with this value."""
    query = f"tags.`{tag}` = '{value}'"
    places = [experiment.experiment_id for page in pages(client.search_experiments) for experiment in page]
    return [run for page in pages(client.search_runs, places, query) for run in page] if places else []

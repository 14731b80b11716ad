"""The points of a run in MLflow: each once, whoever brings them and however often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore.store.series import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_METRICS = 1000  # the most MLflow takes in one call


def log_points(client: MlflowClient, found: Run, wanted: list[Point], whole: bool) -> None:
    """Bring the points that MLflow lacks, of all there are (`whole`) or of those that are new.

    They are brought in the log's order, and MLflow tells the latest step of every metric with the run: it lacks what is
    beyond. Only of a metric that goes back in steps (a final evaluation of an earlier checkpoint) every point is asked.
    """
    from mlflow.entities import Metric

    run_id = found.info.run_id
    latest = {metric.key: metric.step for metric in found.data.to_proto().metrics}
    steps: dict[str, list[int]] = {}
    for name, _, _, step in wanted:
        steps.setdefault(name, []).append(step)
    mixed = [
        name
        for name, of in steps.items()
        if name in latest and (of != sorted(set(of)) or not (whole or of[0] > latest[name]))
    ]
    there = {name: {(m.step, m.timestamp) for m in client.get_metric_history(run_id, name)} for name in mixed}
    missing = [
        Metric(name, value, when, step)
        for name, value, when, step in wanted
        if ((step, when) not in there[name] if name in there else step > latest.get(name, -1))
    ]
    for start in range(0, len(missing), BATCH_METRICS):
        client.log_batch(run_id, metrics=missing[start : start + BATCH_METRICS])

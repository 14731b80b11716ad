"""Logging of metric values to MLflow. In this file, a point is one metric value: name, value, time and step.

MLflow stores a point as a row of its table `metrics`. The primary key consists of all columns, so a point that is
logged twice is stored once. MLflow's `log_batch` creates an SQLAlchemy object for every point, which takes ten times as
long as inserting the row. Therefore, if MLflow's database is a local SQLite file, the rows are inserted directly, many
in one transaction.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from flows.tracking.mlflow_store import file_of
from rlcore.store.series import Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_METRICS = 1000  # MLflow's maximum in one call
BATCH_ROWS = 10_000  # rows of a transaction, about 0.1 s
BUSY = 30.0  # seconds that a transaction waits for other processes
COLUMNS = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")  # columns of both tables in MLflow 3
LARGEST = 1.7976931348623157e308  # MLflow's value for infinity
ADD = f"insert or ignore into metrics ({', '.join(COLUMNS)}) values (?, ?, ?, ?, ?, ?)"
ADD_LATEST = f"""
    insert into latest_metrics ({", ".join(COLUMNS)}) values (?, ?, ?, ?, ?, ?)
    on conflict (key, run_uuid) do update set
        value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan
    where (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)
"""


def log_points(client: MlflowClient, stored: Run, wanted: Iterable[Point], whole: bool) -> None:
    """Log the metric values (points) of a run that MLflow does not have yet.

    Points are always logged in the order of the event log. MLflow returns the latest step of each metric. It therefore
    has all points of the metric up to the first one at this step, and these are skipped. Logging a point twice does no
    harm.

    Args:
        client: client of MLflow.
        stored: the run in MLflow.
        wanted: points in the order of the event log.
        whole: True if `wanted` contains all points of the run; False if it contains only points that were not logged.
    """
    latest = {metric.key: metric.step for metric in stored.data.to_proto().metrics} if whole else {}
    missing = _leave_out(wanted, latest)
    database = file_of(client.tracking_uri)
    if database is not None and _has_known_tables(database):
        while batch := list(itertools.islice(missing, BATCH_ROWS)):
            _insert(database, stored.info.run_id, batch)
    else:
        while batch := list(itertools.islice(missing, BATCH_METRICS)):
            _log(client, stored.info.run_id, batch)


def _leave_out(wanted: Iterable[Point], latest: dict[str, int]) -> Iterable[Point]:
    """Yield the points that MLflow may not have.

    For each metric, these are all points after its latest step in MLflow. A log can contain several points with this
    step; MLflow has at least the first of them, and the others are also yielded.

    Args:
        wanted: points in the order of the event log.
        latest: metric -> latest step in MLflow; metrics that MLflow does not have are missing.

    Returns:
        The points.
    """
    for point in wanted:
        name, _, _, step = point
        if name not in latest or (step >= latest[name] and step > latest.pop(name)):
            yield point


def _log(client: MlflowClient, run_id: str, batch: Sequence[Point]) -> None:
    from mlflow.entities import Metric

    client.log_batch(run_id, metrics=[Metric(name, value, when, step) for name, value, when, step in batch])


def _has_known_tables(database: Path) -> bool:
    """Return True if MLflow's metric tables have the expected columns, so that rows can be inserted directly."""
    with closing(sqlite3.connect(database, timeout=BUSY)) as store:
        tables = [store.execute(f"pragma table_info({table})") for table in ("metrics", "latest_metrics")]
        return all({column[1] for column in table} == set(COLUMNS) for table in tables)


def _insert(database: Path, run_id: str, batch: Sequence[Point]) -> None:
    """Insert points into MLflow's SQLite tables `metrics` and `latest_metrics`, in one transaction."""
    rows = [_row(point, run_id) for point in batch]
    latest = {row[0]: row for row in sorted(rows, key=lambda row: (row[3], row[2], row[1]))}
    with closing(sqlite3.connect(database, timeout=BUSY)) as store, store:
        store.executemany(ADD, rows)
        store.executemany(ADD_LATEST, latest.values())


def _row(point: Point, run_id: str) -> tuple[str, float, int, int, bool, str]:
    """Convert a point to a row of MLflow's table `metrics`; NaN and infinity are encoded as MLflow does."""
    name, value, when, step = point
    undefined = math.isnan(value)
    return name, 0.0 if undefined else max(-LARGEST, min(LARGEST, value)), when, step, undefined, run_id

"""TensorBoard and CSV beside the event log: made from it alone, so that every point is there exactly once.

A mirror is a function of the log: what it should hold is computed whole and compared with the file. A file that is the
beginning of it (an earlier mirror, or one that a kill tore) is continued, so that an open TensorBoard follows; any
other file is replaced. How often and from where `mirror` is called therefore changes nothing.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from flows.process.files import locked
from flows.tracking.points import Point, points
from rlcore.errors import UserError, nearest
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events

LOGGERS = ("tensorboard", "csv", "mlflow", "none")


def mirror(run: RunDirectory, logger_name: str) -> Path | None:
    """Bring the chosen mirror of a run up to date with its event log.

    Args:
        run: the run directory.
        logger_name: `metric.logger.name`: tensorboard, csv, mlflow (which `flows.tracking.mlflow_run` keeps) or none.

    Returns:
        The file written, or None where there is none to write.

    Raises:
        UserError: no such logger.
    """
    if logger_name not in LOGGERS:
        raise UserError(
            f"metric.logger.name={logger_name}: must be one of {', '.join(LOGGERS)}{nearest(logger_name, LOGGERS)}"
        )
    if logger_name not in ("tensorboard", "csv") or not run.events.exists():
        return None
    with locked(run.path / ".mirrors.lock"):
        events = list(read_events(run.events))
        if logger_name == "csv":
            return _bring(run, run.path / "metrics.csv", table(list(points(events))))
        start = events[0]["time"] if events else 0.0
        # TensorBoard takes any name with `tfevents` in it; the time keeps those of several runs apart.
        path = run.path / "tensorboard" / f"events.out.tfevents.{int(start)}.shepherd"
        return _bring(run, path, records(list(points(events)), start))


def table(rows: list[Point]) -> bytes:
    """Points as CSV: one row per env_steps in ascending order, one column per metric, empty where there is none."""
    names = list(dict.fromkeys(name for name, *_ in rows))
    cells: dict[int, dict[str, Any]] = {}
    for name, value, _, step in rows:
        cells.setdefault(step, {"env_steps": step})[name] = repr(value)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["env_steps", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells[step] for step in sorted(cells))
    return text.getvalue().encode()


def records(rows: list[Point], start: float) -> bytes:
    """Points as a TensorBoard event file.

    Args:
        rows: in the order of the log: a longer log only appends.
        start: seconds since 1970 of the header that every event file begins with.

    Returns:
        The whole file, the same bytes for the same points.
    """
    # protobuf makes these classes when it is imported, where pyright cannot see them
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    output = io.BytesIO()
    writer = RecordWriter(output)
    writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString(deterministic=True))
    for name, value, milliseconds, step in rows:
        scalar = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        event = Event(wall_time=milliseconds / 1000, step=step, summary=scalar)
        writer.write(event.SerializeToString(deterministic=True))
    return output.getvalue()


def _bring(run: RunDirectory, path: Path, content: bytes) -> Path:
    """Make a file hold `content`: append what is missing, or replace a file that says something else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    present = path.read_bytes() if path.exists() else None
    if present == content:
        return path
    if present is not None and content.startswith(present):
        with open(path, "ab") as file:
            file.write(content[len(present) :])
        return path
    temporary = run.path / f".mirror.{os.getpid()}"  # not beside the file: TensorBoard reads hidden event files too
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return path

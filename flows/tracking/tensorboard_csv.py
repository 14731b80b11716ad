"""TensorBoard and CSV beside the event log: made from it alone, so that every point is there exactly once.

What a file should hold is computed whole and compared with the file. One that is the beginning of it (an earlier call,
or one that a kill cut off) is continued, so that an open TensorBoard follows; any other is replaced.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from flows.tracking.points import Event, Point, points
from rlcore.store.directory import RunDirectory


def bring_csv(run: RunDirectory, events: list[Event]) -> Path:
    """Bring metrics.csv up to date: one row per env_steps in ascending order, one column per metric."""
    return _bring(run, run.path / "metrics.csv", table(list(points(events))))


def bring_tensorboard(run: RunDirectory, events: list[Event]) -> Path:
    """Bring the run's TensorBoard file up to date."""
    start = events[0]["time"]
    # TensorBoard takes any name with `tfevents` in it; the time keeps those of several runs apart.
    path = run.path / "tensorboard" / f"events.out.tfevents.{int(start)}.shepherd"
    return _bring(run, path, records(list(points(events)), start))


def table(rows: list[Point]) -> bytes:
    """Points as CSV; a cell is empty where there is no point, and of several the last."""
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
    """Points, in the log's order, as a TensorBoard event file whose header has the time `start`; no clock is read."""
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
    present = path.read_bytes() if path.exists() else b""
    if content.startswith(present):
        with open(path, "ab") as file:
            file.write(content[len(present) :])
    else:
        temporary = run.path / f".mirror.{os.getpid()}"  # not beside the file: TensorBoard reads hidden event files too
        temporary.write_bytes(content)
        os.replace(temporary, path)
    return path

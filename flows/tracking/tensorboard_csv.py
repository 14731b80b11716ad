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

from rlcore.store.directory import RunDirectory
from rlcore.store.series import Event, points


def bring_csv(run: RunDirectory, events: list[Event]) -> Path:
    """Bring metrics.csv up to date: a row a step, ascending, a column per metric, in a cell the last point."""
    names: dict[str, None] = {}
    cells: dict[int, dict[str, Any]] = {}
    for name, value, _, step in points(events):
        names[name] = None
        cells.setdefault(step, {"policy_steps": step})[name] = repr(value)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["policy_steps", *names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells[step] for step in sorted(cells))
    return _bring(run, run.path / "metrics.csv", text.getvalue().encode())


def bring_tensorboard(run: RunDirectory, events: list[Event]) -> Path:
    """Bring the run's TensorBoard file up to date: the points in the log's order; no clock is read."""
    # protobuf makes these classes when it is imported, where pyright cannot see them
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    record: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
    start, output = events[0]["time"], io.BytesIO()
    writer = RecordWriter(output)
    writer.write(record(wall_time=start, file_version="brain.Event:2").SerializeToString(deterministic=True))
    for name, value, milliseconds, step in points(events):
        scalar = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        point = record(wall_time=milliseconds / 1000, step=step, summary=scalar)
        writer.write(point.SerializeToString(deterministic=True))
    # TensorBoard takes any name with `tfevents` in it; the time keeps those of several runs apart.
    path = run.path / "tensorboard" / f"events.out.tfevents.{int(start)}.shepherd"
    return _bring(run, path, output.getvalue())


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

"""TensorBoard and CSV beside the event log: made from it alone, so that every point is there exactly once.

A file that this process has left as it is gets what is new. Of any other, what it should hold is computed whole and
compared with it: one that is the beginning of it (an earlier process's, or one that a kill cut off) is continued, so
that an open TensorBoard follows; any other is replaced.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.tracking.news import News
from rlcore.store.directory import RunDirectory
from rlcore.store.series import Point

Cells = dict[int, dict[str, Any]]  # step -> metric -> value as text


def bring_csv(run: RunDirectory, news: News) -> Path:
    """Bring metrics.csv up to date: a row a step, ascending, a column per metric, in a cell the last point."""
    path = run.path / "metrics.csv"
    names, tail, size = news.notes.get("csv", ((), {}, 0))  # columns, last row, bytes before it
    last = max(tail, default=0)
    if news.is_unchanged(path) and all(name in names and step >= last for name, _, _, step in news.points):
        cells = _cells(news.points, tail)
        with open(path, "r+b") as file:
            file.seek(size)
            file.write(_rows(names, cells))
    else:
        points = news.everything().points
        names, cells, size = tuple(dict.fromkeys(name for name, *_ in points)), _cells(points, {}), 0
        head = io.StringIO()
        csv.writer(head, lineterminator="\n").writerow(["policy_steps", *names])
        _bring(run, path, head.getvalue().encode() + _rows(names, cells))
    tail = {step: cells[step] for step in [max(cells)]} if cells else {}
    news.notes["csv"] = names, tail, path.stat().st_size - len(_rows(names, tail))
    news.note(path)
    return path


def _cells(points: Sequence[Point], tail: Cells) -> Cells:
    """The cells of points, beside those of a row that is there."""
    cells = {step: dict(row) for step, row in tail.items()}
    for name, value, _, step in points:
        cells.setdefault(step, {"policy_steps": step})[name] = repr(value)
    return cells


def _rows(names: Sequence[str], cells: Cells) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["policy_steps", *names], restval="", lineterminator="\n")
    writer.writerows(cells[step] for step in sorted(cells))
    return text.getvalue().encode()


def bring_tensorboard(run: RunDirectory, news: News) -> Path:
    """Bring the run's TensorBoard file up to date: the points in the log's order; no clock is read."""
    assert news.first is not None
    start = news.first["time"]
    # TensorBoard takes any name with `tfevents` in it; the time keeps those of several runs apart.
    path = run.path / "tensorboard" / f"events.out.tfevents.{int(start)}.shepherd"
    if news.is_unchanged(path):
        with open(path, "ab") as file:
            file.write(_records(news.moments))
    else:
        _bring(run, path, _records(news.everything().moments, start))
    news.note(path)
    return path


def _records(moments: Sequence[Sequence[Point]], start: float | None = None) -> bytes:
    """Points as TensorBoard's records, those of an event in one; `start` opens the file."""
    # protobuf makes these classes when it is imported, where pyright cannot see them
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    record: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
    output = io.BytesIO()
    writer = RecordWriter(output)
    if start is not None:
        writer.write(record(wall_time=start, file_version="brain.Event:2").SerializeToString(deterministic=True))
    for moment in filter(None, moments):
        _, _, milliseconds, step = moment[0]
        values = [Summary.Value(tag=name, simple_value=value) for name, value, *_ in moment]
        scalars = record(wall_time=milliseconds / 1000, step=step, summary=Summary(value=values))
        writer.write(scalars.SerializeToString(deterministic=True))
    return output.getvalue()


def _bring(run: RunDirectory, path: Path, content: bytes) -> None:
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

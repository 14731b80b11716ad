"""TensorBoard and CSV files of a run, written from the event log, so that they contain every metric value exactly once.

If this process was the last to write a file, new values are appended to it. Otherwise, the complete content of the file
is generated from the event log, in pieces, and compared with the file. If the file is the beginning of this content (an
earlier or killed process wrote it), the rest is appended, and a running TensorBoard shows the new values. If the file
differs, it is replaced.
"""

from __future__ import annotations

import csv
import heapq
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from flows.tracking.news import NewEvents
from rlcore.store.directory import RunDirectory
from rlcore.store.series import Point

Cell = tuple[int, str, str]  # step, metric, value as text
Row = dict[str, Any]  # policy_steps, and metric -> value as text
PIECE = 500  # rows or events that are generated at once


def write_csv(run: RunDirectory, news: NewEvents) -> Path:
    """Write new metric values to the run's file metrics.csv and return its path.

    The file has one row per policy step, in ascending order, and one column per metric. A cell contains the last value
    that was logged for the metric at this step.
    """
    path = run.path / "metrics.csv"
    names, tail, size = news.notes.get("csv", ((), {}, 0))  # columns, last row, bytes before it
    last = tail.get("policy_steps", 0)
    if news.is_unchanged(path) and all(name in names and step >= last for name, _, _, step in news.points()):
        added = [(last, name, value) for name, value in tail.items() if name != "policy_steps"]
        rows = list(_rows(itertools.chain(added, _cells(news.points())), ()))
        with open(path, "r+b") as file:
            file.seek(size)
            file.write(_text(names, rows))
        tail = rows[-1] if rows else {}
    else:
        whole = news.everything()
        names, late = _survey(whole.points())
        tail = _update_table(run, path, names, lambda: _rows(_on_time(_cells(whole.points())), late))
    news.notes["csv"] = names, tail, path.stat().st_size - len(_text(names, [tail] if tail else []))
    news.note(path)
    return path


def _cells(points: Iterable[Point]) -> Iterator[Cell]:
    return ((step, name, repr(value)) for name, value, _, step in points)


def _survey(points: Iterable[Point]) -> tuple[tuple[str, ...], list[Cell]]:
    """Return the names of all metrics, in the order of their first values, and the late cells, sorted by step.

    A cell is (step, metric, value as text). It is late if a cell with a larger step precedes it in the event log. Late
    cells must be merged into earlier rows of the table.
    """
    names: dict[str, None] = {}
    late: list[Cell] = []
    highest = 0
    for step, name, value in _cells(points):
        names[name] = None
        if step < highest:
            late.append((step, name, value))
        highest = max(step, highest)
    return tuple(names), sorted(late, key=itemgetter(0))


def _on_time(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield the cells that are not late: no cell with a larger step precedes them (see `_survey`)."""
    highest = 0
    for cell in cells:
        if cell[0] >= highest:
            highest = cell[0]
            yield cell


def _rows(cells: Iterable[Cell], late: Iterable[Cell]) -> Iterator[Row]:
    """Merge cells into one row per step.

    Args:
        cells: (step, metric, value), in ascending order of steps.
        late: further cells in ascending order of steps; they replace `cells` with the same step and metric.

    Yields:
        Rows in ascending order of steps.
    """
    for step, of_step in itertools.groupby(heapq.merge(cells, late, key=itemgetter(0)), itemgetter(0)):
        yield {"policy_steps": step} | {name: value for _, name, value in of_step}


def _update_table(run: RunDirectory, path: Path, names: Sequence[str], rows: Callable[[], Iterator[Row]]) -> Row:
    """Bring a CSV file up to date: append missing rows, or replace a file with other content.

    Args:
        run: the run, for a temporary file.
        path: the CSV file.
        names: metrics, in the order of the columns.
        rows: returns an iterator of all rows of the file.

    Returns:
        The last row.
    """
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow(["policy_steps", *names])
    last: Row = {}

    def pieces() -> Iterator[bytes]:
        nonlocal last
        yield head.getvalue().encode()
        left = rows()
        while piece := list(itertools.islice(left, PIECE)):
            last = piece[-1]
            yield _text(names, piece)

    _update_file(run, path, pieces)
    return last


def _text(names: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, ["policy_steps", *names], restval="", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_tensorboard(run: RunDirectory, news: NewEvents) -> Path:
    """Write new metric values to the run's TensorBoard file, in the order and with the times of the event log.

    Returns the path of the file.
    """
    assert news.first is not None
    start = news.first["time"]
    # TensorBoard reads all files with `tfevents` in their names; the time distinguishes several runs.
    path = run.path / "tensorboard" / f"events.out.tfevents.{int(start)}.shepherd"
    if news.is_unchanged(path):
        with open(path, "ab") as file:
            file.writelines(_records(news.moments()))
    else:
        whole = news.everything()
        _update_file(run, path, lambda: _records(whole.moments(), start))
    news.note(path)
    return path


def _records(moments: Iterator[list[Point]], start: float | None = None) -> Iterator[bytes]:
    """Convert metric values to TensorBoard records; each event of the log becomes one record.

    Args:
        moments: for each event, the list of its metric values.
        start: time at which the run started. If it is given, the header record of a new file is yielded first.

    Yields:
        Bytes of several records.
    """
    # protobuf creates these classes at import, so pyright does not know them
    from tensorboard.compat.proto import event_pb2
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    record: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]

    def pieces() -> Iterator[Any]:
        if start is not None:
            yield record(wall_time=start, file_version="brain.Event:2")
        for moment in filter(None, moments):
            _, _, milliseconds, step = moment[0]
            values = [Summary.Value(tag=name, simple_value=value) for name, value, *_ in moment]
            yield record(wall_time=milliseconds / 1000, step=step, summary=Summary(value=values))

    left = pieces()
    while piece := list(itertools.islice(left, PIECE)):
        output = io.BytesIO()
        writer = RecordWriter(output)
        for scalars in piece:
            writer.write(scalars.SerializeToString(deterministic=True))
        yield output.getvalue()


def _update_file(run: RunDirectory, path: Path, pieces: Callable[[], Iterator[bytes]]) -> None:
    """Give a file a certain content: append the part that is missing, or replace the file if its content differs.

    Args:
        run: the run, for a temporary file.
        path: the file.
        pieces: returns an iterator of the pieces of the content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        file.seek(0)
        if all(_continue(file, piece) for piece in pieces()) and not file.read(1):
            return
    temporary = run.path / f".mirror.{os.getpid()}"  # in another folder, because TensorBoard reads hidden files too
    with open(temporary, "wb") as file:
        file.writelines(pieces())
    os.replace(temporary, path)


def _continue(file: io.BufferedRandom, piece: bytes) -> bool:
    """Compare the next bytes of a file with a piece of the expected content.

    If the file ends within the piece, the missing bytes are appended. Return False if the file has other content.
    """
    present = file.read(len(piece))
    if not piece.startswith(present):
        return False
    if len(present) < len(piece):  # only at the end of the file: elsewhere even an empty write would break the buffer
        file.write(piece[len(present) :])
    return True

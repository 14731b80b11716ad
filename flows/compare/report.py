"""Comparison of sides (groups of runs) that writes index.html, pictures, runs.csv, points.csv and compare.json."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.compare.gather import Side, Tell, gather
from flows.compare.page import page
from flows.compare.pictures import draw
from flows.compare.records import Record
from flows.compare.result import Comparison, compare
from flows.compare.verdict import Verdict, as_json, verdict
from flows.report.figures import Picture, save
from rlcore.errors import UserError
from rlcore.store.directory import write_json, write_text
from rlcore.store.series import CLOCKS, Quantity

RUN_COLUMNS = [
    "side",
    "environment",
    "seed",
    "status",
    "counted",
    "value",
    "final_greedy_mean",
    "policy_steps",
    "budget",
]
RUN_COLUMNS += ["updates", "wall_s", "cpu_s", "baseline_mean", "commit", "run"]
POINT_COLUMNS = ["side", "environment", "seed", "run", "metric", "policy_steps", "wall_s", "cpu_s", "value"]


class Report(NamedTuple):
    """Comparison with its verdict, pictures and folder."""

    comparison: Comparison
    verdict: Verdict
    pictures: list[Picture]
    folder: Path


def report(
    words: Sequence[str],
    out: str,
    root: str,
    threshold: float | None = None,
    tell: Tell = lambda done: None,
    metric: str | None = None,
) -> Report:
    """Compare sides (groups of runs) and write the page, pictures and tables of the comparison to a folder.

    Args:
        words: one argument for each side: the name of a group or a sweep, a folder, a glob, or a search in MLflow.
        out: the folder; files of an earlier comparison in it are replaced.
        root: folder that is searched for groups.
        threshold: return for "policy steps to the threshold"; with several environments, a score between random (0)
            and solved (1). None uses the return at which the environment is solved.
        tell: called with progress messages about runs read and pictures drawn.
        metric: name of a number that `env.info_keys` selects, by which the runs are compared; None: the return.

    Returns:
        The report.

    Raises:
        UserError: If a side is unknown, nothing can be compared, or `out` is not a folder.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder (it is created if it does not exist)")
    return write(gather(words, root, tell, Quantity(metric)), folder, threshold, tell)


def write(sides: list[Side], folder: Path, threshold: float | None = None, tell: Tell = lambda done: None) -> Report:
    """Compare sides (groups of runs) and write the page, pictures and tables of the comparison to a folder.

    Args:
        sides: two or more sides with their runs.
        folder: the folder to write to.
        threshold: return for "policy steps to the threshold"; with several environments, a score between random (0)
            and solved (1). None uses the return at which the environment is solved.
        tell: called with progress messages about pictures drawn.

    Returns:
        The report.

    Raises:
        UserError: If nothing can be compared.
    """
    comparison = compare(sides, threshold)
    conclusion = verdict(comparison)
    pictures = []
    for picture in draw(comparison):
        pictures.append(picture)
        tell(f"picture drawn: {folder / picture.stem}.png")
    save(pictures, folder)
    write_text(folder / "runs.csv", _csv(RUN_COLUMNS, _runs(comparison)))
    write_text(folder / "points.csv", _csv(POINT_COLUMNS, _points(comparison)))
    write_json(folder / "compare.json", as_json(comparison, conclusion))
    write_text(folder / "index.html", page(comparison, conclusion, pictures))
    return Report(comparison, conclusion, pictures, folder)


def _runs(comparison: Comparison) -> Iterator[list[Any]]:
    """Yield the rows of runs.csv: one row for each run of all groups, including runs that are not compared."""
    values = {
        record.run_id: value
        for side, tasks in comparison.selection.counted.items()
        for task, records in tasks.items()
        for record, value in zip(records, comparison.values[side][task], strict=True)
    }
    for side, r in _all(comparison):
        effort = [r.effort.get(name) for name in ("updates", "wall_s", "cpu_s")]
        value = values.get(r.run_id)
        about = [
            side,
            r.task,
            r.seed,
            r.status,
            str(value is not None).lower(),
            value,
            r.final,
            r.policy_steps,
            r.budget,
        ]
        yield [*about, *effort, r.baseline, r.commit, r.place]


def _points(comparison: Comparison) -> Iterator[list[Any]]:
    """Yield the rows of points.csv: one row for each logged evaluation and each logged return of training episodes."""
    for side, r in _all(comparison):
        wall, cpu = (dict(r.clock(name)) for name in CLOCKS)
        for name in (r.quantity.evaluation, r.quantity.training, r.quantity.name or ""):
            for steps, value in r.lines.get(name, ()):
                yield [side, r.task, r.seed, r.place, name, steps, wall.get(steps), cpu.get(steps), value]


def _all(comparison: Comparison) -> Iterator[tuple[str, Record]]:
    for side in comparison.sides:
        for record in side.records:
            yield side.name, record


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()

"""Command `shepherd compare`, which compares groups of runs statistically.

The command prints a verdict and a table, and writes an HTML page.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

from flows.report.command_lines import short_path
from flows.settings import run_root
from rlcore.system.printable import print_safely


def compare(
    sides: Sequence[str], out: str, threshold: float | None, metric: str | None, runs: str | None, as_json: bool
) -> None:
    """Compare groups of runs, write an HTML page, and print the verdict and a table.

    Args:
        sides: the groups to compare: names of groups or sweeps, folders, globs, or searches in MLflow.
        out: folder for the page, the pictures and the tables.
        threshold: return (on several environments: normalized score) for the column "policy steps to the threshold";
            None for the return at which the environment counts as solved.
        metric: name of a number that `env.info_keys` selects, by which the runs are compared; None for the return.
        runs: folder that is searched for groups; None for the default folder of runs.
        as_json: print the results only as JSON.
    """
    from flows.compare.report import report  # SciPy, Gymnasium
    from flows.compare.verdict import as_json as plain
    from flows.compare.verdict import table as figures
    from flows.report.terminal import show, table

    comparison, conclusion, _, folder = report(sides, out, runs or run_root(), threshold, _report_every(), metric)
    if as_json:
        print_safely(json.dumps(plain(comparison, conclusion), indent=2))
        return
    head, rows = figures(comparison)
    show("", conclusion.headline, *(f"  {sentence}" for sentence in [*conclusion.sentences, *comparison.notes]), "")
    show(table(head, rows, head[2:], rule=True), "")
    if conclusion.commands:
        show("to decide it, train more runs", *(f"  {command}" for command in conclusion.commands), "")
    print_safely(f"page with pictures and figures: {short_path(folder / 'index.html')}")


def _report_every(every: float = 5.0) -> Callable[[str], None]:
    """Return a function that prints a progress message, but at most one message every `every` seconds."""
    last = time.monotonic()

    def report(done: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print_safely(done, file=sys.stderr)

    return report

"""Command `shepherd compare`, which compares groups of runs and reports a sentence, a table and a page."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

from flows.report.command_lines import short_path
from flows.settings import run_root
from rlcore.system.printable import print_safely


def compare(sides: Sequence[str], out: str, threshold: float | None, runs: str | None, as_json: bool) -> None:
    """Compare groups of runs, write the page and print the verdict; with `as_json`, print only the results as JSON.

    Groups are searched in the folder `runs`, or in the default folder of runs if it is None.
    """
    from flows.compare.report import report  # SciPy, Gymnasium
    from flows.compare.verdict import as_json as plain
    from flows.compare.verdict import table as figures
    from flows.report.terminal import show, table

    comparison, conclusion, _, folder = report(sides, out, runs or run_root(), threshold, _telling())
    if as_json:
        print_safely(json.dumps(plain(comparison, conclusion), indent=2))
        return
    head, rows = figures(comparison)
    show("", conclusion.headline, *(f"  {sentence}" for sentence in [*conclusion.sentences, *comparison.notes]), "")
    show(table(head, rows, head[2:], rule=True), "")
    if conclusion.commands:
        show("to decide it, train more runs", *(f"  {command}" for command in conclusion.commands), "")
    print_safely(f"page with pictures and figures: {short_path(folder / 'index.html')}")


def _telling(every: float = 5.0) -> Callable[[str], None]:
    """Return a function that prints progress at most once every `every` seconds; loading from MLflow can be slow."""
    last = time.monotonic()

    def tell(done: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print_safely(done, file=sys.stderr)

    return tell

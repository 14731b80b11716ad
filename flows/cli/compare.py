"""`shepherd compare`: which of several groups of runs is better, as a sentence, a table and a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from flows.report.command_lines import short_path


def compare(sides: Sequence[str], out: str, threshold: float | None, runs: str, as_json: bool) -> None:
    """Compare sides, write the page, and print the verdict; with `as_json` all figures, and nothing else."""
    from flows.compare.pictures import NAMES  # matplotlib is not imported by this
    from flows.compare.report import report  # SciPy, Gymnasium
    from flows.compare.verdict import as_json as plain
    from flows.compare.verdict import share, spelled
    from flows.report.terminal import show, table

    made, found, folder = report(sides, out, runs, threshold, lambda doing: print(f"{doing} …", file=sys.stderr))
    if as_json:
        print(json.dumps(plain(made, found), indent=2))
        return
    rows = [
        (task, side, *(share(f) if name == "optimality_gap" else spelled(f) for name, f in figures.items()))
        for task, of in made.aggregates.items()
        for side, figures in of.items()
    ]
    show("", found.headline, *(f"  {sentence}" for sentence in [*found.sentences, *made.notes]), "")
    show(table(("environment", "side", *NAMES.values()), rows, NAMES.values(), rule=True), "")
    if found.commands:
        show("what would settle it", *(f"  {command}" for command in found.commands), "")
    print(f"page, pictures and figures: {short_path(folder / 'index.html')}")

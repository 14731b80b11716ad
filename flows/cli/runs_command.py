"""Command `shepherd runs`, which lists runs, newest first. It reads only files in the folders of the runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from rich.text import Text

from flows.report.command_lines import short_path
from flows.report.sentences import age, number
from flows.report.terminal import long_table, show
from flows.runs.run_list import DIED, TRAINING, ListedRun, list_runs
from flows.settings import run_root
from rlcore.store.events import COMPLETE
from rlcore.system.printable import print_safely

HEAD = ("algorithm", "environment", "seed", "status", "steps", "return", "age", "run")
NUMBERS = ("seed", "steps", "return", "age")
COLORS = {**dict.fromkeys(COMPLETE, "green"), TRAINING: "cyan", DIED: "red", "failed": "red"}


def runs(chosen: str, folder: str | None, last: int | None, as_json: bool) -> None:
    """Print a table of runs, newest first.

    Args:
        chosen: group, sweep, folder, glob, or a word in name, algorithm, environment, group or status; "" = all runs.
        folder: folder that is searched for runs; None for the default folder of runs.
        last: number of runs to print, beginning with the newest; None prints all.
        as_json: print the runs as JSON.
    """
    root = folder or run_root()
    found = list_runs(chosen, root)
    shown, now = found[:last], time.time()
    if as_json:
        print_safely(json.dumps([one.as_json(now) for one in shown], indent=2))
    elif not shown and chosen:
        print_safely(f"no run in {root} has the status {chosen}")
    elif not shown:
        print_safely(f"no runs in {root}; `shepherd train exp=ppo` trains one, --runs FOLDER searches another folder")
    else:
        show(long_table(HEAD, [_row(one, now) for one in shown], NUMBERS))
        for note in _notes(shown, len(found)):
            print_safely(note)


def _row(one: ListedRun, now: float) -> Sequence[str | Text]:
    steps = f"{one.policy_steps:,}"
    if one.status not in COMPLETE and one.total_steps:
        steps += f" ({min(100, 100 * one.policy_steps // one.total_steps)}%)"
    value = "-" if one.measured is None else number(one.measured.value)
    value = f"~{value}" if one.measured and one.measured.source == "training" else value
    place, status = short_path(one.run.path), Text(one.status, COLORS.get(one.status, ""))
    return one.algo, one.env_id, str(one.seed), status, steps, value, age(now - one.created), place


def _notes(shown: Sequence[ListedRun], found: int) -> list[str]:
    notes = []
    if any(one.measured and one.measured.source == "training" for one in shown):
        notes.append("~ mean return of training episodes, because the run has no evaluation yet")
    if len(shown) < found:
        notes.append(f"{len(shown):,} of {found:,} runs")
    return notes

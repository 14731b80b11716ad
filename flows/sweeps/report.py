"""Reports of a sweep: results as JSON, the HTML page with pictures, and the results in MLflow and Prefect."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from flows.compare.gather import Side
from flows.compare.page import sections
from flows.compare.records import from_directory
from flows.compare.report import write
from flows.process.signals import time_left
from flows.report.command_lines import short_path
from flows.report.figures import Picture, save
from flows.runs.listeners import subscribe
from flows.sweeps.creating import first_config
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.mlflow_parent import mirror_sweep
from flows.sweeps.page import draw, markdown, page
from flows.sweeps.plan import SweepConfig, SweepPlan
from flows.sweeps.status import Row, read_results, runs_of, trials_of
from flows.sweeps.winner import train_command
from flows.workers.artifacts import show_sweep
from rlcore.config.values import plain
from rlcore.errors import RunError, UserError, first_line
from rlcore.store.directory import RunDirectory, write_text

Result = TypeVar("Result")
log = logging.getLogger(__name__)
SHARE = 20  # after drawing pictures for 1 s, wait at least 20 s: trials need the processor
SHARE_OF_TEXT = 5  # after writing the page for 1 s, wait at least 5 s
FRESH = 10.0  # seconds between two updates if no trial ends
PARTING = 8.0  # seconds that an interrupted sweep waits for the page thread before the last update


def report(sweep: Sweep) -> dict[str, Any]:
    """Report a finished sweep: write the page, log the results to MLflow and Prefect.

    Returns the result of the sweep's flow: its keys are name, result (a sentence), best and confirmed. Raises RunError
    if no trial was completed.
    """
    folder = sweep.folder
    found = write_page(sweep, whole=True)
    trials, best = found["trials"], found["best"]
    note = markdown(found, definition(sweep.config), train_command(folder))
    rows = [{**trial, "params": json.dumps(trial["params"])} for trial in trials]
    show_sweep(folder.name, rows, note)
    try:
        mirror_sweep(folder, plain(first_config(sweep.plan)), found, plain(sweep.config), note)
    except Exception as error:  # errors of an unreachable store have many types; the results are stored locally
        log.warning(
            "the results of the sweep could not be written to MLflow: %s: %s", type(error).__name__, first_line(error)
        )
    if best is None:
        sentences = [trial["sentence"] for trial in trials if "sentence" in trial]
        raise RunError(f"sweep {folder.name}: no trial was completed; {(sentences or ['all were pruned'])[0]}")
    result = f"best of {len(trials)} trials: trial {best['number']} with value {best['value']:.6g}"
    if found["confirmed"]:
        result += f"; {found['confirmed']['words']}"
    return {"name": folder.name, "result": result, "best": best, "confirmed": found["confirmed"]}


def write_page(
    sweep: Sweep, whole: bool, broken: bool = False, drawn: Sequence[Picture] | None = None
) -> dict[str, Any]:
    """Write the current results of a sweep to its page report.html and to report.json.

    Args:
        sweep: the sweep.
        whole: True if the sweep is finished. Pictures are then also written to files. If the best trial was compared
            with the default configuration on new seeds, the page contains this comparison, too.
        broken: True if the sweep was interrupted; the page then contains the command that resumes it.
        drawn: pictures of the page; None = draw them now.

    Returns:
        The current results, with the keys of `status`.
    """
    folder, plan, study = sweep.folder, sweep.plan, sweep.study
    with sweep.page:
        found: dict[str, Any] = read_results(folder, plan, study) | {"go_on": folder.resume_command if broken else None}
        if sweep.is_reported and not (whole or broken):  # late call of the thread that updates the page
            return found
        sweep.is_reported = whole
        if drawn is None:
            drawn = draw_pictures(folder, plan, found["trials"], study.importance() if whole else {})
        if whole:
            save(drawn, folder.pictures)
        confirmation = _confirmation(folder, plan, found["confirmed"]) if whole and found["confirmed"] else ""
        _write_files(folder, plan, found, drawn, confirmation)
    return found


def refresh_page(folder: SweepFolder, found: Mapping[str, Any]) -> None:
    """Write the page of an unfinished sweep that no process is running, if the page does not show its current results.

    The page is out of date if the process that ran the sweep was killed.

    Args:
        folder: folders of the sweep.
        found: current results, from `status`.
    """
    if not found["go_on"] or found["lost"]:
        return
    try:
        if not folder.figures.exists() or json.loads(folder.figures.read_text()) != json.loads(json.dumps(found)):
            plan = folder.read()
            _write_files(folder, plan, found, draw_pictures(folder, plan, found["trials"]))
    except OSError as error:  # the file may belong to another user
        log.warning("%s: the page could not be updated (%s)", short_path(folder.report), error.strerror)


def draw_pictures(
    folder: SweepFolder, plan: SweepPlan, trials: Sequence[Row], importance: Mapping[str, float] | None = None
) -> list[Picture]:
    """Draw the pictures of a sweep's trials and the learning curves of their runs.

    `importance` is the result of `Study.importance`; without it, this picture is omitted.
    """
    quantity = plan.config.quantity
    curves = {
        trial["number"]: [run.evaluations(quantity) for run in runs_of(folder, trial["number"])] for trial in trials
    }
    return draw(trials, curves, plan.space, importance or {}, quantity.words)


def _write_files(
    folder: SweepFolder, plan: SweepPlan, found: Mapping[str, Any], drawn: Sequence[Picture], confirmation: str = ""
) -> None:
    command = train_command(folder) if folder.preset.exists() else ""  # the preset is written when the sweep is done
    write_text(folder.report, page(found, definition(plan.config), command, drawn, confirmation))
    write_text(folder.figures, json.dumps(found, indent=2) + "\n")


def _confirmation(folder: SweepFolder, plan: SweepPlan, confirmed: Mapping[str, Any]) -> str:
    """Write the comparison of winner and default, and return its HTML; "" if the runs cannot be compared."""
    places = {"winner": folder.runs / f"winner_{confirmed['trial']:04d}", "default": folder.runs / "default"}
    sides = [
        Side(
            side,
            f"folder {place}",
            f"{folder.name}-{side}",
            [from_directory(RunDirectory(place / f"seed_{seed}"), plan.config.quantity) for seed in confirmed["seeds"]],
        )
        for side, place in places.items()
    ]
    try:
        result = write(sides, folder.comparison)
    except UserError as error:
        log.warning("the winner and the default configuration could not be compared: %s", error)
        return ""
    return sections(result.comparison, result.verdict, result.pictures)


@contextmanager
def refresh_reports(sweep: Sweep) -> Iterator[None]:
    """Context manager that updates a sweep's report page in a thread, and once more if the sweep is interrupted."""
    ended, over = threading.Event(), threading.Event()

    def draw_now() -> Sequence[Picture]:
        return draw_pictures(sweep.folder, sweep.plan, trials_of(sweep.folder, sweep.plan, sweep.study))

    def keep() -> None:
        drawn: Sequence[Picture] = ()
        stale, due = True, 0.0  # True if a trial ended since the pictures were drawn; earliest time of the next drawing
        while not over.is_set():
            began = time.monotonic()
            if stale and began >= due:
                drawn, stale = _attempt(sweep, draw_now) or (), False
                due = time.monotonic() + SHARE * (time.monotonic() - began)
                began = time.monotonic()
            _attempt(sweep, functools.partial(write_page, sweep, whole=False, drawn=drawn))
            over.wait(SHARE_OF_TEXT * (time.monotonic() - began))
            stale = ended.wait(FRESH) or stale
            ended.clear()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind == "trial":
            ended.set()

    keeper = threading.Thread(target=keep, name="page", daemon=True)
    keeper.start()
    broken = True
    try:
        with subscribe(listener):
            yield
        broken = False
    finally:
        over.set()
        ended.set()
        keeper.join(time_left(PARTING))
        if broken and not keeper.is_alive():
            _attempt(sweep, lambda: write_page(sweep, whole=False, broken=True))


def _attempt(sweep: Sweep, action: Callable[[], Result]) -> Result | None:
    """Call a function that draws or writes the page; a failure is logged, because it must not end the sweep."""
    try:
        return action()
    except Exception as error:
        name, kind = sweep.folder.name, type(error).__name__
        log.warning("the page of sweep %s could not be updated: %s: %s", name, kind, first_line(error))
        return None


def definition(config: SweepConfig) -> str:
    """Return a sentence that explains how the value of a trial is computed with these settings of a sweep."""
    of_run = f"the mean {config.quantity.words} of the greedy policy in "
    of_run += {
        "last": f"the evaluations of the last {config.last} × evaluation.every policy steps",
        "all": "all evaluations during training",
        "final": "the final evaluation",
    }[config.objective]
    if config.seeds == 1:
        return f"The value of a run is {of_run}. A trial has one run (one training seed)."
    return (
        f"The value of a run is {of_run}. The value of a trial is the interquartile mean over its {config.seeds} runs "
        "(training seeds)."
    )

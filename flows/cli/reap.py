"""Command `shepherd reap`, which finds unfinished runs whose process has died.

The command writes to their event logs and to MLflow that they have died.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.cli.train_command import resume
from flows.report.command_lines import continue_command, short_path
from flows.report.terminal import console, show, table
from flows.runs.milestones import StaleRun, find_other_machine, find_stale, mark_died
from flows.settings import run_root
from flows.tracking.mirror import update_or_warn
from flows.workers.servers import check_servers
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely, printable

HEAD = ("run", "state", "policy steps", "resume with")


def reap(folders: Sequence[str], elsewhere: bool = False, resume_runs: bool = False, as_json: bool = False) -> int:
    """Find runs whose process has died, record this in their event logs, and print the command that resumes each run.

    Args:
        folders: folders that are searched for runs; empty for the default folder of runs.
        elsewhere: also record the death of runs whose last process ran on another machine.
        resume_runs: resume the runs that have died, one after another.
        as_json: print the result as JSON.

    Returns:
        Exit code: 1 if a resumed run failed, else 0.

    Raises:
        UserError: a folder does not exist.
    """
    folders = folders or [run_root()]
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"{folder}: no such folder; give a folder that contains runs")
    check_servers()
    runs = [run for folder in folders for run in RunDirectory.below(Path(folder).absolute())]
    dead, away = [], {}
    for one in _find_all_gone(runs):
        host = None if elsewhere else find_other_machine(one.run)
        if host is not None:
            away[one.run] = host
        elif one.marked or mark_died(one):
            dead.append(one)
    with console(sys.stderr).status("") as status:
        reports = []
        for number, one in enumerate(dead, 1):
            status.update(printable(f"{number} of {len(dead)}: {short_path(one.run.path)}"))
            reports.append(_bring(one))
        _mark_sweeps([one.run for one in dead])
    if as_json:
        others = [{"run_dir": str(run.path), "host": host} for run, host in away.items()]
        print_safely(json.dumps({"runs": reports, "elsewhere": others}))
    else:
        _show(reports, {short_path(run.path): host for run, host in away.items()}, len(runs), folders)
    return max([_resume_run(one.run) for one in dead], default=0) if resume_runs else 0


def _find_all_gone(runs: Sequence[RunDirectory]) -> Iterator[StaleRun]:
    """Yield the runs whose process has died; print an error for each run with damaged files."""
    for run in runs:
        try:
            run.read_identity()
            run.read_config()
            if (one := find_stale(run)) is not None:
                yield one
        except (UserError, RunError) as error:
            print_safely(f"{short_path(run.path)}: skipped: {error}", file=sys.stderr)


def _bring(one: StaleRun) -> dict[str, Any]:
    """Update the summary and the MLflow run of a run that has died; return the facts that `shepherd reap` prints."""
    from flows.stages.summary import summarise  # numpy
    from rlcore.store import checkpoint  # numpy

    run, newest = one.run, None
    try:
        newest = checkpoint.newest_good(run.checkpoints)
        if newest is not None and not one.marked:
            summarise(run)
    except (UserError, RunError) as error:  # an error in one run must not stop the other runs
        print_safely(f"{short_path(run.path)}: {error}", file=sys.stderr)
    return {
        "run_dir": str(run.path),
        "run_id": run.read_identity()["run_id"],
        "state": one.state,
        "marked": one.marked,
        "policy_steps": checkpoint.policy_steps(newest) if newest else 0,
        "mlflow": update_or_warn(run),
        "resume": continue_command(run.path, run.read_config().get("plugins")),
    }


def _mark_sweeps(runs: Sequence[RunDirectory]) -> None:
    """Mark the sweeps that contain these runs as interrupted in MLflow, except sweeps that a process is running."""
    for sweep, run in {run.path.parents[1]: run for run in runs if len(run.path.parents) > 1}.items():
        if (sweep / "sweep.json").exists():
            from flows.sweeps.folder import SweepFolder  # Hydra
            from flows.sweeps.mlflow_parent import note_killed  # Hydra

            folder = SweepFolder(sweep.name)
            if folder.plan_file.exists():
                note_killed(folder, run.read_config())


def _show(reports: Sequence[dict[str, Any]], away: dict[str, str], runs: int, folders: Sequence[str]) -> None:
    rows = [(short_path(Path(t["run_dir"])), t["state"], f"{t['policy_steps']:,}", t["resume"]) for t in reports]
    if rows:
        show(table(HEAD, rows, numbers=("policy steps",)))
    else:
        print_safely(f"checked {runs} runs in {', '.join(folders)}: no run has a dead process")
    for behind in (t["run_dir"] for t in reports if not t["mlflow"]):
        print_safely(f"MLflow could not be updated; see {short_path(Path(behind))}/run.log", file=sys.stderr)
    for run, host in away.items():
        print_safely(
            f"{run}: skipped, because it ran on {host}; run `shepherd reap` there, or add --elsewhere if that machine "
            "no longer exists",
            file=sys.stderr,
        )


def _resume_run(run: RunDirectory) -> int:
    """Resume a run and return the exit code; an error is printed, so that the other runs are still resumed."""
    try:
        resume(short_path(run.path), ())
    except (UserError, RunError) as error:
        print_safely(f"shepherd: {short_path(run.path)}: {error}", file=sys.stderr)
        return 1
    return 0

"""`shepherd reap`: runs whose process is gone are marked, in their logs and in MLflow, and told with what goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.cli.train_command import resume
from flows.report.command_lines import going_on_command, short_path
from flows.report.terminal import console, show, table
from flows.runs.gone import Gone, find_gone, find_other_machine, mark
from flows.settings import run_root
from flows.tracking.mirror import bring_or_note
from flows.workers.servers import check_servers
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely, printable

HEAD = ("run", "state", "policy steps", "goes on with")


def reap(folders: Sequence[str], elsewhere: bool = False, go_on: bool = False, as_json: bool = False) -> int:
    """Mark the runs below the folders whose process is gone, print how each goes on; with `go_on`, do that.

    Without folders below that in which runs are made. A run that was led on another machine last is left alone, unless
    `elsewhere`.
    """
    folders = folders or [run_root()]
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"{folder}: no folder here; name one that holds runs")
    check_servers()
    runs = [run for folder in folders for run in RunDirectory.below(Path(folder).absolute())]
    found, away = [], {}
    for one in _find_all_gone(runs):
        host = None if elsewhere else find_other_machine(one.run)
        if host is not None:
            away[one.run] = host
        elif one.marked or mark(one):
            found.append(one)
    with console(sys.stderr).status("") as status:
        told = []
        for number, one in enumerate(found, 1):
            status.update(printable(f"{number} of {len(found)}: {short_path(one.run.path)}"))
            told.append(_bring(one))
        _mark_sweeps([one.run for one in found])
    if as_json:
        others = [{"run_dir": str(run.path), "host": host} for run, host in away.items()]
        print_safely(json.dumps({"runs": told, "elsewhere": others}))
    else:
        _show(told, {short_path(run.path): host for run, host in away.items()}, len(runs), folders)
    return max([_goes_on(one.run) for one in found], default=0) if go_on else 0


def _find_all_gone(runs: Sequence[RunDirectory]) -> Iterator[Gone]:
    """The runs whose process is gone; of one whose files are damaged the sentence is printed."""
    for run in runs:
        try:
            run.read_identity()
            run.read_config()
            if (one := find_gone(run)) is not None:
                yield one
        except (UserError, RunError) as error:
            print_safely(f"{short_path(run.path)}: left out: {error}", file=sys.stderr)


def _bring(one: Gone) -> dict[str, Any]:
    """Bring the summary and MLflow up to date with what was marked; what is printed of it."""
    from flows.stages.summary import summarise  # numpy
    from rlcore.store import checkpoint  # numpy

    run, newest = one.run, None
    try:
        newest = checkpoint.newest_good(run.checkpoints)
        if newest is not None and not one.marked:
            summarise(run)
    except (UserError, RunError) as error:  # its log says what became of it; the others are not to wait for its repair
        print_safely(f"{short_path(run.path)}: {error}", file=sys.stderr)
    return {
        "run_dir": str(run.path),
        "run_id": run.read_identity()["run_id"],
        "state": one.state,
        "marked": one.marked,
        "policy_steps": checkpoint.policy_steps(newest) if newest else 0,
        "mlflow": bring_or_note(run),
        "resume": going_on_command(run.path, run.read_config().get("plugins")),
    }


def _mark_sweeps(runs: Sequence[RunDirectory]) -> None:
    """Have MLflow say of the sweeps of these runs that they are interrupted, where nobody drives them."""
    for sweep, run in {run.path.parents[1]: run for run in runs if len(run.path.parents) > 1}.items():
        if (sweep / "sweep.json").exists():
            from flows.sweeps.folder import SweepFolder  # Hydra
            from flows.sweeps.mlflow_parent import note_killed  # likewise

            folder = SweepFolder(sweep.name)
            if folder.plan_file.exists():
                note_killed(folder, run.read_config())


def _show(told: Sequence[dict[str, Any]], away: dict[str, str], runs: int, folders: Sequence[str]) -> None:
    rows = [(short_path(Path(t["run_dir"])), t["state"], f"{t['policy_steps']:,}", t["resume"]) for t in told]
    if rows:
        show(table(HEAD, rows, numbers=("policy steps",)))
    else:
        print_safely(f"{runs} runs in {', '.join(folders)}: none whose process is gone")
    for behind in (t["run_dir"] for t in told if not t["mlflow"]):
        print_safely(f"MLflow is behind: {short_path(Path(behind))}/run.log says why", file=sys.stderr)
    for run, host in away.items():
        print_safely(
            f"{run}: led on {host}; reap there, or with --elsewhere if that machine is no more", file=sys.stderr
        )


def _goes_on(run: RunDirectory) -> int:
    """Continue a run; its exit code. One that fails keeps no other from going on."""
    try:
        resume(short_path(run.path), ())
    except (UserError, RunError) as error:
        print_safely(f"shepherd: {short_path(run.path)}: {error}", file=sys.stderr)
        return 1
    return 0

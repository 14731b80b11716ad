"""`shepherd train` and `shepherd resume`: the whole flow, on a new run or on one that is there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from flows.process.network import is_server
from flows.process.signals import farewell
from flows.report.command_lines import bin_folder, resume_command, short_path
from flows.settings import tracking_uri
from flows.workers.servers import check_servers
from rlcore.store.directory import RunDirectory
from rlcore.system.secrets import redacted


def train(overrides: Sequence[str]) -> int:
    """Make a run of what was typed and train it; returns the exit code."""
    from flows.runs.create import new_run  # torch

    check_servers()
    return _flow(new_run(overrides))


def resume(run_dir: str, overrides: Sequence[str]) -> int:
    """Go on with a run, after keys of it were set anew; returns the exit code."""
    farewell(f"shepherd: interrupted; continue with: {resume_command(run_dir)}")
    from flows.config.compose import compose_existing
    from flows.runs.change import change_run  # torch

    run = RunDirectory.existing(run_dir)
    run.refuse_second_writer()
    compose_existing(run.config, overrides)  # a mistake is told before anything is touched
    if overrides:
        check_servers()
        change_run(run, overrides)
    summary = run.read_summary()
    if summary.get("status") in ("finished", "stopped_early", "dry_run"):
        print(f"{run_dir}: finished already ({summary['env_steps']:,} env steps); nothing to do")
        return 0
    return _flow(run)


def _flow(run: RunDirectory) -> int:
    """Run the whole flow on a run directory, new or half-done, and show what comes of it."""
    farewell(f"shepherd: interrupted; continue with: {resume_command(short_path(run.path))}")
    check_servers()
    from flows.cli.follow import following, without_tracebacks
    from flows.report.tables import summary_table
    from flows.report.terminal import show
    from flows.train import run_flow  # Prefect
    from rlcore.store.checkpoint import newest_good

    config = run.read_config()
    newest = newest_good(run.checkpoints)  # says which were skipped
    going_on = f" · continues at {int(newest.name):,} env steps" if newest else ""
    if newest is None and run.events.exists():
        going_on = " · no checkpoint yet: from the beginning"
    about = f"{config['algo']['name']} on {config['env']['id']} · seed {config['seed']}"
    print(f"{about} · {short_path(run.path)}{going_on}", file=sys.stderr)
    with following(run), without_tracebacks():
        summary = run_flow(run)
    show(summary_table(summary, run, next_commands(run)))
    return 0


def next_commands(run: RunDirectory) -> list[str]:
    """What is worth typing after a training; for MLflow the address of its server, when there is one."""
    where, store = shlex.quote(short_path(run.path)), tracking_uri()
    # The address of a database with a password in it is left to the shell, which has it from the environment or `.env`.
    typed = shlex.quote(store) if redacted(store) == store else '"$MLFLOW_TRACKING_URI"'
    return [
        f"{bin_folder()}shepherd enjoy {where}",
        f"{bin_folder()}shepherd evaluate {where} --episodes 100 --video",
        redacted(store) if is_server(store) else f"{bin_folder()}mlflow ui --backend-store-uri {typed}",
    ]

"""`shepherd train` and `shepherd resume`."""

from __future__ import annotations

from collections.abc import Sequence

from flows.process.signals import farewell
from flows.report.command_lines import resume_command


def train(overrides: Sequence[str]) -> int:
    """Train a new run from a config to a registered model; returns the exit code."""
    from flows.cli.console import follow
    from flows.config.compose import compose
    from flows.process.network import check_servers
    from flows.runs.create import new_run

    composed = compose(overrides)
    check_servers()  # a mistake leaves nothing on disk
    return follow(new_run(*composed, overrides))


def resume(run_dir: str, overrides: Sequence[str]) -> int:
    """Go on with a run, whose config may be changed where that changes nothing learned; returns the exit code."""
    farewell(f"shepherd: interrupted; continue with: {resume_command(run_dir)}")
    from flows.cli.console import follow
    from flows.config.compose import compose_existing
    from flows.process.network import check_servers
    from flows.runs.change import change_run
    from rlcore.store.directory import RunDirectory

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
    return follow(run)

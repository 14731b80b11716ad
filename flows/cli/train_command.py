"""Commands `shepherd train`, `shepherd resume`, `shepherd extend` and `shepherd reproduce`, which train a run.

The first three run the Prefect flow with all stages: training, evaluation, registration of the model and summary.
`reproduce` repeats a training from its stored lineage (config, code, data) and checks that the results are identical.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flows.config.compose import compose_existing
from flows.config.run_file import with_file
from flows.process.exits import name_continuation
from flows.process.network import is_server
from flows.report.command_lines import bin_folder, resume_command, short_path
from flows.runs.listeners import announce
from flows.runs.milestones import is_over
from flows.settings import tracking_uri
from flows.tracking.loggers import check_logger
from flows.tracking.view_commands import view_commands
from flows.workers.local_api import prefect_api_soon
from flows.workers.servers import check_servers
from rlcore import plugins
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely
from rlcore.system.secrets import redact


def train_run_or_group(overrides: Sequence[str], workers: int | None = None, file: str = "") -> None:
    """Create a run from overrides, and from those in a file, and train it.

    If a key has several values (`seed=0,1,2`), train a group of runs instead, one run for each value. `workers` is the
    number of runs that are trained at the same time; it is allowed only for a group. `file` is the path of a file with
    settings, or "".
    """
    from flows.runs.create import new_run  # Hydra
    from flows.sweeps.group_runs import has_several

    overrides = with_file(file, overrides)
    check_servers()
    if has_several(overrides):
        _group(overrides, workers)
        return
    if workers is not None:
        raise UserError(f"--workers {workers}: needs a group of runs; give a key several values, as seed=0,1,2")
    run = new_run(overrides)
    with name_continuation(resume_command(short_path(run.path))):
        _flow(run)


def extend(source: str, overrides: Sequence[str]) -> None:
    """Train a new run that starts from the complete state of another run; `overrides` change keys of its config."""
    from flows.runs.extend import extended_run  # Hydra

    check_servers()
    run = extended_run(source, overrides)
    with name_continuation(resume_command(short_path(run.path))):
        _flow(run)


def resume(run_dir: str, overrides: Sequence[str]) -> None:
    """Resume an unfinished run; `overrides` change keys of its config first."""
    with name_continuation(resume_command(run_dir)):
        from flows.runs.create import change_run  # Hydra

        run = RunDirectory.existing(run_dir)
        run.refuse_second_writer()
        stored = run.read_config()
        config, values = compose_existing(run.config, overrides, stored)  # report errors before any file changes
        check_logger(config.metric.logger)
        lost = ", ".join(sorted(_missing_keys(values, stored)))
        if overrides:
            check_servers()
            change_run(run, overrides)
        if is_over(run):
            cut = f"{run.config.name} has no value for {lost}; if the file was cut, restore it from a copy"
            why = cut if lost else "nothing to do"
            print_safely(f"{run_dir}: already finished ({run.read_summary()['policy_steps']:,} policy steps); {why}")
        else:
            _flow(run)


def _missing_keys(values: Mapping[str, Any], stored: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys, at every level, that are in `values` but not in `stored`; of a missing group, its key."""
    for key, value in values.items():
        if key not in stored:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping) and isinstance(stored[key], Mapping):
            yield from _missing_keys(value, stored[key], f"{prefix}{key}.")


def reproduce(source: str, run_dir: str = "", as_json: bool = False) -> None:
    """Repeat the training of a run or of a registered model, and print if the results are bit-identical.

    Args:
        source: run directory or models:/ URI.
        run_dir: folder for the repeated run; "" for a new folder. If the folder contains an unfinished repetition, it
            is resumed.
        as_json: print the result as JSON.
    """
    again = shlex.join(["shepherd", "reproduce", source, *(["--run-dir", run_dir] if run_dir else [])])
    with name_continuation(f"{bin_folder()}{again}"):
        check_servers()
        from flows.cli.progress import show_progress  # rich
        from flows.runs.original import restore  # torch

        run = restore(source, run_dir)
        with show_progress(run), prefect_api_soon():
            with announce("importing Prefect"):
                from flows.reproduce import reproduction
            with without_tracebacks():
                result = reproduction(run)
    if as_json:
        print_safely(json.dumps(result))
    else:
        print_safely(f"{result['result']}; the second run is {short_path(run.path)}")


def _group(overrides: Sequence[str], workers: int | None) -> None:
    """Train the unfinished runs of a group and print a table of the results of all its runs."""
    from flows.cli.progress import show_jobs  # rich
    from flows.report.terminal import show
    from flows.sweeps.group_runs import group_of
    from flows.sweeps.status import group_table

    group = group_of(overrides, workers)
    there = sum(training.state == "over" for training in group.trainings)
    progress = f" · {there} already finished" if there else ""
    print_safely(
        f"group {group.name} · {len(group.trainings)} runs, {group.workers} at a time{progress}", file=sys.stderr
    )
    again = shlex.join(["shepherd", "train", *overrides, *plugins.as_typed()])
    with name_continuation(f"{bin_folder()}{again}"):
        if there < len(group.trainings):
            with show_jobs("runs", len(group.trainings), there), prefect_api_soon():
                with announce("importing Prefect"):
                    from flows.group import run_group
                with without_tracebacks():
                    run_group([*overrides], workers)
        runs = [training.run for training in group.trainings]
        show(group_table(group.name, runs, view_commands(runs)))


def _flow(run: RunDirectory) -> None:
    """Run all stages of a new or unfinished run, from training to the registration of the model; print the summary."""
    check_servers()
    from flows.cli.progress import show_progress
    from flows.report.tables import summary_table
    from flows.report.terminal import show
    from rlcore.store import checkpoint

    config = run.read_config()
    newest = checkpoint.newest_good(run.checkpoints)  # logs a warning for each damaged checkpoint
    progress = f" · resumes at {checkpoint.policy_steps(newest):,} policy steps" if newest else ""
    if newest is None and run.events.exists():
        progress = " · no checkpoint yet, starts from the beginning"
    about = f"{config['algo']['name']} on {config['env']['id']} · seed {config['seed']}"
    print_safely(f"{about} · {short_path(run.path)}{progress}", file=sys.stderr)
    with show_progress(run), prefect_api_soon():
        with announce("importing Prefect"):
            from flows.train import run_flow
        with without_tracebacks():
            summary = run_flow(run)
    filmed = config["env"]["capture_video"]
    show(summary_table(summary, run, next_commands(run, drawn=bool(summary.get("video")) or not filmed)))


def next_commands(run: RunDirectory, drawn: bool = True) -> list[str]:
    """Return suggestions that are printed after a training.

    They are commands that show and evaluate the policy; the command that shows the run's TensorBoard files, or where
    its logger has sent the data; and the address of the MLflow server or, if there is no server, the command that
    starts one. `drawn` is False if the environment could not be rendered; commands that render the environment are
    then omitted.
    """
    where, behind = shlex.quote(short_path(run.path)), "".join(f" {shlex.quote(word)}" for word in plugins.as_typed())
    store = tracking_uri()
    return [
        *([f"{bin_folder()}shepherd enjoy {where}{behind}"] if drawn else []),
        f"{bin_folder()}shepherd evaluate {where} --episodes 100 --round 3{' --video' * drawn}{behind}",
        *view_commands([run]),
        redact(store) if is_server(store) else f"{bin_folder()}shepherd ui",
    ]


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Context manager that keeps Prefect's tracebacks off the terminal; Prefect's history still has them.

    The command prints the error message without a traceback. Enter this context after the import of Prefect, which
    creates the log handlers.
    """
    handlers = logging.getLogger().handlers + logging.getLogger("prefect").handlers

    def elsewhere(record: logging.LogRecord) -> bool:
        return not record.name.startswith(("prefect.flow_runs", "prefect.task_runs"))

    for handler in handlers:
        handler.addFilter(elsewhere)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(elsewhere)

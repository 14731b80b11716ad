"""Command `shepherd reproduce`.

It repeats a training from its stored lineage (config, code, data) and checks that the results are bit-identical.
"""

from __future__ import annotations

import json
import shlex

from flows.cli.train_command import without_tracebacks
from flows.process.exits import name_continuation
from flows.report.command_lines import bin_folder, short_path
from flows.workers.local_api import prefect_api_soon
from flows.workers.servers import check_servers
from rlcore.system.printable import print_safely


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
        from flows.cli.progress import show_progress
        from flows.runs.original import restore  # torch

        run = restore(source, run_dir)
        with prefect_api_soon(), show_progress(run):
            from flows.reproduce import reproduction  # Prefect

            with without_tracebacks():
                result = reproduction(run)
    if as_json:
        print_safely(json.dumps(result))
    else:
        print_safely(f"{result['result']}; the second run is {short_path(run.path)}")

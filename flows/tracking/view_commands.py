"""Commands and addresses that show the data that loggers received from runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from flows.report.command_lines import bin_folder, short_path
from flows.tracking.loggers import address_of, has_received_nothing
from rlcore.store.directory import RunDirectory


def view_commands(runs: Iterable[RunDirectory]) -> list[str]:
    """Return the commands and addresses that show the data of the loggers of runs.

    They are one command for the TensorBoard files of all runs, which names the folder that contains these files, and
    the address that each other logger returned, such as the URL of a run in W&B. If a logger has received nothing, for
    example because its server did not answer, its address is the command that sends the points.
    """
    files, others = list[Path](), dict[str, None]()
    for run in runs:
        folder = run.path / "tensorboard"
        if folder.is_dir() and run.read_config()["metric"]["logger"]["name"] == "tensorboard":
            files.append(folder)
        elif address := address_of(run):
            others[f"{bin_folder() if address.startswith('wandb sync') else ''}{address}"] = None
        elif has_received_nothing(run):
            command = f"{bin_folder()}python -m flows.tracking {shlex.quote(short_path(run.path))}"
            others[f"{command}  # no points were sent; the reason is in run.log"] = None
    logs = [f"{bin_folder()}tensorboard --logdir {shlex.quote(short_path(_common_folder(files)))}"] if files else []
    return [*logs, *others]


def _common_folder(paths: list[Path]) -> Path:
    return Path(os.path.commonpath([path.absolute() for path in paths]))

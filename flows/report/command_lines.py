"""Paths and command lines that are printed so that users can copy them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcore import plugins


def short_path(path: Path) -> str:
    """Return a path relative to the working directory if it is inside the working directory, otherwise unchanged."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def bin_folder() -> str:
    """Return the folder of the command `shepherd`, to be written before the command's name in a command line.

    The result ends with a slash. It is "" if the shell finds `shepherd` in PATH without the folder.
    """
    return "" if shutil.which("shepherd") else shlex.quote(short_path(Path(sys.executable).parent) + "/")


def resume_command(run_dir: str | Path, modules: Sequence[str] | None = None) -> str:
    """Return the command line that resumes a run.

    The command line contains the plugins in `modules`; None stands for the plugins of this process.
    """
    return f"{bin_folder()}shepherd {shlex.join(['resume', str(run_dir), *plugins.as_typed(modules)])}"


def sweep_resume_command(name: str) -> str:
    """Return the command line that resumes a sweep."""
    return f"{bin_folder()}shepherd sweep resume {name}"


def continue_command(run_dir: Path, modules: Sequence[str] | None = None) -> str:
    """Return the command line that resumes a run; if the run is a trial of a sweep, the command resumes the sweep.

    The command line contains the plugins in `modules`; None stands for the plugins of this process.
    """
    trial, sweep = run_dir.parent, run_dir.parent.parent
    if trial.name.startswith("trial_") and sweep.parent.name == "sweeps":
        return sweep_resume_command(sweep.name)
    return resume_command(short_path(run_dir), modules)


def stage_command(
    stage: str, run_dir: str, params: str | None, overrides: Sequence[str], modules: Sequence[str] | None = None
) -> str:
    """Return the command line that runs one stage of a run.

    `params` is the path of a parameter file of a DVC pipeline, or None. The command line contains `overrides` only if
    there is a parameter file. It contains the plugins in `modules`; None stands for the plugins of this process.
    """
    behind = ["--params", params, *overrides] if params is not None else []
    return shlex.join(["shepherd", "stage", stage, run_dir, *behind, *plugins.as_typed(modules)])

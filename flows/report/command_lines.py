"""Paths and commands, as one would type them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcore import plugins


def short_path(path: Path) -> str:
    """A path as one would type it here: from the current folder where it lies in it, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def bin_folder() -> str:
    """Folder of this environment's commands, with a slash: to be put before one; empty where PATH finds them."""
    return "" if shutil.which("shepherd") else shlex.quote(short_path(Path(sys.executable).parent) + "/")


def resume_command(run_dir: str | Path, modules: Sequence[str] | None = None) -> str:
    """The command line that goes on with a run; `modules` are its plugins, None = those that are named here."""
    return f"{bin_folder()}shepherd {shlex.join(['resume', str(run_dir), *plugins.as_typed(modules)])}"


def sweep_resume_command(name: str) -> str:
    """The command line that goes on with a sweep."""
    return f"{bin_folder()}shepherd sweep resume {name}"


def going_on_command(run_dir: Path, modules: Sequence[str] | None = None) -> str:
    """The line that goes on with a run: with the sweep whose trial it is, else, with its plugins, the run alone."""
    trial, sweep = run_dir.parent, run_dir.parent.parent
    if trial.name.startswith("trial_") and sweep.parent.name == "sweeps":
        return sweep_resume_command(sweep.name)
    return resume_command(short_path(run_dir), modules)


def stage_command(stage: str, run_dir: str, params: str | None, overrides: Sequence[str]) -> str:
    """The command line of a stage; overrides belong to `params`."""
    behind = ["--params", params, *overrides] if params is not None else []
    return shlex.join(["shepherd", "stage", stage, run_dir, *behind, *plugins.as_typed()])

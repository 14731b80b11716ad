"""Paths and commands as a person would type them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def place() -> str:
    """What stands before a command of this environment: nothing where PATH finds it, else the folder of this Python."""
    return "" if shutil.which("shepherd") else shown(Path(sys.executable).parent) + "/"


def resume_command(run_dir: str | Path) -> str:
    """The command line that goes on with a run."""
    return f"{place()}shepherd resume {shlex.quote(str(run_dir))}"


def stage_command(stage: str, run_dir: str, params: str | None, overrides: Sequence[str]) -> str:
    """The command line of a stage; overrides belong to `params`."""
    behind = ["--params", params, *overrides] if params is not None else []
    return shlex.join(["shepherd", "stage", stage, run_dir, *behind])

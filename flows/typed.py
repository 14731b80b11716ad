"""Paths and commands as a person would type them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def stage_command(stage: str, run_dir: str, params: str | None, overrides: Sequence[str]) -> str:
    """The command line of a stage; overrides belong to `params`."""
    behind = ["--params", params, *overrides] if params is not None else []
    return shlex.join(["shepherd", "stage", stage, run_dir, *behind])

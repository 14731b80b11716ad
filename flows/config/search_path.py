"""Folders in which config files are looked for: the user's own, in their order, then the project's `conf/`."""

from __future__ import annotations

import os
from pathlib import Path

from rlcore.errors import UserError

BUILT_IN = Path(__file__).resolve().parents[2] / "conf"
VARIABLES = ("SHEPHERD_SEARCH_PATH", "SHEEPRL_SEARCH_PATH")
# Spellings of the built-in files; no package is imported for its configs.
BUILT_IN_PACKAGES = ("pkg://sheeprl.configs", "pkg://conf")


def config_folders() -> list[Path]:
    """Folders that are searched for config files, the first that has a file wins; the built-in one is last.

    A variable is read from the environment, else from `.env` in the working directory.
    """
    from dotenv import dotenv_values

    known = dotenv_values(Path.cwd() / ".env") | os.environ
    entries = ((name, entry.strip()) for name in VARIABLES for entry in (known.get(name) or "").split(";"))
    folders = [_folder(name, entry) for name, entry in entries if entry and entry not in BUILT_IN_PACKAGES]
    return [*dict.fromkeys(folders), BUILT_IN]


def _folder(variable: str, entry: str) -> Path:
    scheme, separator, rest = entry.partition("://")
    if separator and scheme != "file":
        raise UserError(
            f"{variable}: {entry!r} is not a folder, and packages are not imported for their configs; "
            "give the folder of the files, as file:///home/me/configs"
        )
    folder = Path(rest if separator else entry).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{variable}: {entry!r} is no folder here ({folder}); create it or take it out")
    return folder

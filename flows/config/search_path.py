"""Where config files are looked for: the user's own folders, in their order, then the project's `conf/`."""

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

    Returns:
        Absolute folders from SHEPHERD_SEARCH_PATH, then SHEEPRL_SEARCH_PATH (each read from the environment, else from
        `.env` in the working directory), then `conf/`.

    Raises:
        UserError: an entry that is no folder here.
    """
    folders: list[Path] = []
    for variable in VARIABLES:
        for entry in _value(variable).split(";"):
            folder = _folder(variable, entry.strip())
            if folder is not None and folder not in folders:
                folders.append(folder)
    return [*folders, BUILT_IN]


def _value(variable: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    from dotenv import dotenv_values

    return dotenv_values(Path.cwd() / ".env").get(variable) or ""


def _folder(variable: str, entry: str) -> Path | None:
    """One entry's folder; None where it is empty or means the built-in files, which are searched anyway."""
    if not entry or entry in BUILT_IN_PACKAGES:
        return None
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

"""Search path of config files: the user's folders in order, then the project's `conf/`."""

from __future__ import annotations

import os
from pathlib import Path

from rlcore.errors import UserError

BUILT_IN = Path(__file__).resolve().parents[2] / "conf"
VARIABLES = ("SHEPHERD_SEARCH_PATH", "SHEEPRL_SEARCH_PATH")
# Names of the built-in folder in SheepRL's search paths; packages are never imported for their configs.
BUILT_IN_PACKAGES = ("pkg://sheeprl.configs", "pkg://conf")


def config_folders() -> list[Path]:
    """Return the folders that are searched for config files, in order of precedence. The built-in folder is the last.

    The environment variables that list the folders are read from the environment, or from `.env` in the working
    directory.
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
            f"{variable}: {entry!r} must be a folder, because packages are not imported for their configs; "
            "write it as file:///home/me/configs"
        )
    folder = Path(rest if separator else entry).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{variable}: {entry!r} does not exist ({folder}); create it or remove it from the variable")
    return folder

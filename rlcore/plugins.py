"""Modules of the user's own: named by the user in SHEPHERD_PLUGINS or behind a command, never by a file.

A plugin registers what it brings when it is imported: environments with Gymnasium, algorithms with
`rlcore.algorithms.register`. A run notes the plugins it was made with; whoever goes on with it names them again.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from rlcore.errors import UserError

VARIABLE = "SHEPHERD_PLUGINS"


def named() -> list[str]:
    """The modules that the user has named, in this process and for its children."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def name(modules: Iterable[str]) -> None:
    """Name more of them."""
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*named(), *modules]))


def load() -> list[str]:
    """Import them, from the working directory too; their names. A UserError where one cannot be imported."""
    names = named()
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for module in names:
        try:
            found = importlib.import_module(module)
        except (ImportError, SyntaxError, TypeError, ValueError) as error:
            raise UserError(f"{VARIABLE}={module}: this module cannot be imported ({error})") from None
        if found.__file__ is None:
            raise UserError(f"{VARIABLE}={module}: a folder without __init__.py; name a module in it, as {module}.mine")
    return names


def require(modules: Iterable[str]) -> None:
    """Refuse what was made with plugins that nobody has named now: no file makes this program import anything."""
    if missing := [module for module in modules if module not in named()]:
        names = ",".join(missing)
        raise UserError(
            f"plugins=[{names}]: this was made with it, and nothing is imported because a file names it; "
            f"write {VARIABLE}={names} before the command"
        )


def hashes() -> dict[str, str]:
    """SHA-256 of the Python sources of each: of its package, or of its one file."""
    found: dict[str, str] = {}
    for module in load():
        path = Path(sys.modules[module].__file__ or "")
        files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
        digest = hashlib.sha256()
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{len(content)}\0".encode() + content)
        found[module] = digest.hexdigest()
    return found

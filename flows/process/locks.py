"""Lock files between processes; the operating system frees a lock when its process ends."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from rlcore.errors import UserError

SILENT = 2.0  # seconds of waiting after which it is said for whom
LOOK_EVERY = 0.05  # seconds
log = logging.getLogger(__name__)


@contextmanager
def hold(path: Path, *, shared: bool = False, refusal: str = "", waiting: str = "") -> Iterator[None]:
    """Hold a lock file inside the `with`; with `shared`, others may hold it shared as well.

    With a `refusal` nobody waits: a UserError says it behind the names of the processes that hold the lock. Who has
    waited for two seconds says so, behind their names, where `waiting` says what they do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        way = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if refusal and not _get(handle, way):
            raise UserError(f"{_name(path)} {refusal}")
        if waiting:
            until = time.monotonic() + SILENT
            while not (got := _get(handle, way)) and time.monotonic() < until:
                time.sleep(LOOK_EVERY)
            if not got:
                log.warning("%s %s; waiting for it", _name(path), waiting)
        fcntl.flock(handle, way)
        yield


def is_taken(path: Path) -> bool:
    """Tell whether some process holds a lock file just now; changes nothing, and does not wait."""
    with suppress(FileNotFoundError, PermissionError), open(path, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
        except BlockingIOError:
            return True
    return False


def is_locked(error: BaseException | None) -> bool:
    """Tell whether an error, of whatever library, came of an SQLite database that another process has locked."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError) and "is locked" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def wait_for_database(path: Path, patience: float) -> sqlite3.Error | None:
    """Wait until an SQLite file can be written; the error if another process has it locked for longer.

    Who has waited for two seconds says so.
    """
    began, told = time.monotonic(), False
    while (error := _try_to_write(path)) and (waited := time.monotonic() - began) < patience:
        if waited > SILENT and not told:
            told = True
            log.warning("%s: %s has locked this database; waiting for it", path, _name(path))
        time.sleep(LOOK_EVERY)
    return error


def _try_to_write(path: Path) -> sqlite3.Error | None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", timeout=0, uri=True)) as database:
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return error if is_locked(error) else None  # what else is wrong with it, its library says
    return None


def _get(handle: IO[str], way: int) -> bool:
    try:
        fcntl.flock(handle, way | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(path: Path) -> str:
    return " and ".join(_holders(path)) or "another process"


def _holders(path: Path) -> list[str]:
    """Other processes of this user that have a file open: pid and what was typed."""
    import psutil  # for a refusal only

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(file.path == str(path.resolve()) for file in process.open_files()):
                found.append(f"pid {process.pid} ({shlex.join(process.cmdline()[1:])})")
    return found

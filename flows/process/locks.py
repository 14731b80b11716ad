"""Lock files: only one process at a time can lock a file. The system releases the lock when this process ends."""

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

SILENT = 2.0  # seconds of waiting before a message is logged
LOOK_EVERY = 0.05  # seconds between two attempts
log = logging.getLogger(__name__)


@contextmanager
def hold(path: Path, *, shared: bool = False, refusal: str = "", waiting: str = "") -> Iterator[None]:
    """Context manager that locks a file.

    Args:
        path: the lock file; created if it does not exist.
        shared: True acquires a shared lock: several processes can have it at the same time, but none can have an
            exclusive lock.
        refusal: error message without its subject, such as "is running sweep x; wait until it ends". If it is not
            empty, this context does not wait for the lock. The message starts with "another process", and ends with the
            pids and command lines of the processes that use the file.
        waiting: warning without its subject, such as "registers a model". If it is not empty, the warning is logged
            after two seconds of waiting, with the pids of the processes that use the file.

    Raises:
        UserError: Another process has locked the file, and `refusal` is not empty; or `path` is a folder or a symbolic
            link to nothing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        opened = open(path, "a")  # noqa: SIM115 - closed below
    except (IsADirectoryError, FileNotFoundError) as error:
        raise UserError(f"{path}: this lock file cannot be opened ({error.strerror}); remove it") from None
    with opened as handle:
        way = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if refusal and not _get(handle, way):
            raise UserError(f"another process {refusal}{_name(path, commands=True)}")
        if waiting:
            until = time.monotonic() + SILENT
            while not (got := _get(handle, way)) and time.monotonic() < until:
                time.sleep(LOOK_EVERY)
            if not got:
                log.warning("another process %s; waiting for it%s", waiting, _name(path))
        fcntl.flock(handle, way)
        yield


def is_taken(path: Path) -> bool:
    """Return True if any process has an exclusive lock on a file. Do not wait, and do not create the file."""
    with suppress(FileNotFoundError, PermissionError, IsADirectoryError), open(path, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two checks do not see each other
        except BlockingIOError:
            return True
    return False


def is_locked(error: BaseException | None) -> bool:
    """Return True if the cause of an exception is that another process has locked an SQLite database."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError) and "is locked" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def wait_for_database(path: Path, patience: float) -> sqlite3.Error | None:
    """Wait until no other process has locked an SQLite file. Log a warning after two seconds.

    Args:
        path: the file.
        patience: longest wait, in seconds.

    Returns:
        None if the file can be written, or the SQLite error if it is still locked after `patience` seconds.
    """
    began, logged = time.monotonic(), False
    while (error := _try_to_write(path)) and (waited := time.monotonic() - began) < patience:
        if waited > SILENT and not logged:
            logged = True
            log.warning("%s: another process has locked this database; waiting for it%s", path, _name(path))
        time.sleep(LOOK_EVERY)
    return error


def _try_to_write(path: Path) -> sqlite3.Error | None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", timeout=0, uri=True)) as database:
            database.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return error if is_locked(error) else None  # the library that opens the file reports other errors
    return None


def _get(handle: IO[str], way: int) -> bool:
    try:
        fcntl.flock(handle, way | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(path: Path, commands: bool = False) -> str:
    """Return the other processes that have a file open, in parentheses with a space before them; "" if none is known.

    One of them has locked the file; the others may be waiting for it.
    """
    found = [f"pid {pid} ({command})" if commands else f"pid {pid}" for pid, command in _holders(path)]
    return f" ({', '.join(found)})" if found else ""


def _holders(path: Path) -> list[tuple[int, str]]:
    """Return pid and command line of the other processes of this user that have a file open."""
    import psutil  # imported here, because only messages need it

    holders: list[tuple[int, str]] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(file.path == str(path.resolve()) for file in process.open_files()):
                holders.append((process.pid, shlex.join(process.cmdline()[1:])))
    return holders

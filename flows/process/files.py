"""A lock file between processes, and the hash of a file."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlcore.errors import UserError


@contextmanager
def locked(path: Path, *, shared: bool = False, refusal: str = "") -> Iterator[None]:
    """Hold a lock file; the operating system frees it when the process ends.

    Args:
        path: the lock file; made when missing.
        shared: others may hold it shared as well.
        refusal: what to say, behind the names of the processes that hold it, instead of waiting for them.

    Yields:
        Once; the lock is held inside the `with`.

    Raises:
        UserError: the refusal.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (fcntl.LOCK_NB if refusal else 0))
        except BlockingIOError:
            raise UserError(f"{' and '.join(_holders(path)) or 'another process'} {refusal}") from None
        yield


def _holders(path: Path) -> list[str]:
    """Other processes of this user that have a file open: pid and what was typed."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(file.path == str(path.resolve()) for file in process.open_files()):
                found.append(f"pid {process.pid} ({shlex.join(process.cmdline()[1:])})")
    return found


def file_hash(path: Path) -> str:
    """The hash of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()

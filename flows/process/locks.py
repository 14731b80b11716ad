"""Lock files between processes; the operating system frees a lock when its process ends."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlcore.errors import UserError


@contextmanager
def locked(path: Path, *, shared: bool = False, refusal: str = "") -> Iterator[None]:
    """Hold a lock file inside the `with`; with `shared`, others may hold it shared as well.

    With a `refusal` nobody waits: a UserError says it behind the names of the processes that hold the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (fcntl.LOCK_NB if refusal else 0))
        except BlockingIOError:
            raise UserError(f"{' and '.join(_holders(path)) or 'another process'} {refusal}") from None
        yield


def taken(path: Path) -> bool:
    """Whether some process holds a lock file just now; changes nothing, and does not wait."""
    with suppress(FileNotFoundError, PermissionError), open(path, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
        except BlockingIOError:
            return True
    return False


def _holders(path: Path) -> list[str]:
    """Other processes of this user that have a file open: pid and what was typed."""
    import psutil  # for a refusal only

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(file.path == str(path.resolve()) for file in process.open_files()):
                found.append(f"pid {process.pid} ({shlex.join(process.cmdline()[1:])})")
    return found

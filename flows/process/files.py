"""A lock file between processes, and the hash of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for other processes; the operating system frees it when the process ends.

    Args:
        path: the lock file; made when missing.

    Yields:
        Nothing; the lock is held inside the `with`.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def file_hash(path: Path) -> str:
    """The hash of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()

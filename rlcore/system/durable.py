"""Writing of files and folders that survive a power failure (durable)."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """Write a file, with fsync of its content; its name is durable after a call of `sync_directory` for its folder."""
    with open(path, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync_directory(path: Path) -> None:
    """Make all entries of a folder durable: files that were created, renamed or removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a folder and its missing parents, durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def make_private(path: Path) -> None:
    """Create a folder that only its owner can access, durably. An existing folder is not changed.

    Missing parents get default permissions. A parent with the setgid bit is shared with a group on purpose; the group
    can then access the new folder too, unless the umask forbids it.
    """
    if not path.is_dir():
        make_directory(path.parent)
        shared = path.parent.stat().st_mode & stat.S_ISGID
        path.mkdir(mode=0o770 if shared else 0o700, exist_ok=True)
        sync_directory(path.parent)

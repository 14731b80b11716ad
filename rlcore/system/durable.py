"""Durable files and directory entries, which survive a power failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and make its content durable; call `sync_directory` to make its name durable too."""
    with open(path, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync_directory(path: Path) -> None:
    """Make the names of all files in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a folder and its missing parents, and make their names durable."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def make_private(path: Path) -> None:
    """Create a folder that only its owner can access; missing parents get the default mode.

    An existing folder keeps its mode. If the parent has the setgid bit, it is shared on purpose: its group can access
    the new folder too, as far as the umask allows.
    """
    if not path.is_dir():
        make_directory(path.parent)
        shared = path.parent.stat().st_mode & stat.S_ISGID
        path.mkdir(mode=0o770 if shared else 0o700, exist_ok=True)
        sync_directory(path.parent)

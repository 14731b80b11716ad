"""Files and names that outlast a power cut."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and make its content durable; its name becomes so with `sync_directory`."""
    with open(path, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a folder, with those above it that are missing, and make their names durable."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def make_private(path: Path) -> None:
    """Make a folder that nobody but its owner can enter, and normal ones above it; one that exists keeps its mode.

    If the folder above it has the setgid bit, it is shared on purpose: its group can enter as well, as the umask says.
    """
    if not path.is_dir():
        make_directory(path.parent)
        shared = path.parent.stat().st_mode & stat.S_ISGID
        path.mkdir(mode=0o770 if shared else 0o700, exist_ok=True)
        sync_directory(path.parent)

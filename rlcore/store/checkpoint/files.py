"""Reading of a single file of a checkpoint, with verification of its type, size and SHA-256."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import UserError

TRANSIENT = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MANIFEST_LIMIT = 1 << 22  # maximum size in bytes; a manifest has an entry for each of three files and for each chunk


class Damage(Exception):
    """Error for a damaged checkpoint, whose message names the damaged file; an older checkpoint can be used instead."""


class Unreadable(Damage):
    """Error for a checkpoint that cannot be read now but may be undamaged, for example without read permission.

    Such a checkpoint is not skipped: using an older one instead would discard training without need.
    """


class OtherVersion(Unreadable):
    """Error for a checkpoint that was written by another version of Shepherd."""


def read_json(data: bytes, name: str) -> Any:
    """Parse the content of a JSON file. Raise UserError with the file name `name` if it is not valid JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UserError(f"{name} is not valid JSON") from None


def read_whole(path: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """Read a file of a checkpoint and verify it.

    Args:
        path: folder of the checkpoint.
        name: path of the file in this folder.
        entry: size and sha256 of the file in the manifest.

    Returns:
        The content of the file.

    Raises:
        Damage: if size or SHA-256 differ from the manifest entry, or the file is missing or not a regular file.
    """
    data = read(path, name, entry)
    if entry != {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
        raise Damage(f"{name} has changed since it was written")
    return data


def read(path: Path, name: str, entry: Any) -> bytes:
    """Read a file of a checkpoint, after a check of its type and size.

    Args:
        path: folder of the checkpoint.
        name: path of the file in this folder.
        entry: manifest entry of the file with its size; None for the manifest, which may have up to 4 MiB.

    Returns:
        The content of the file.

    Raises:
        Damage: if the size is wrong, or the file is missing, a link, a pipe or a device.
    """
    try:
        descriptor = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as handle:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Damage(f"{name} is not a regular file")
            fits = status.st_size <= MANIFEST_LIMIT if entry is None else status.st_size == _size(entry)
            if not fits:
                raise Damage(f"{name} has changed since it was written")
            return handle.read()
    except OSError as error:
        kind = Unreadable if error.errno in TRANSIENT else Damage
        raise kind(f"{name} cannot be read ({error.strerror})") from None
    except MemoryError:
        raise Unreadable(f"{name} does not fit into memory") from None


def _size(entry: Any) -> Any:
    return entry.get("size") if isinstance(entry, dict) else None

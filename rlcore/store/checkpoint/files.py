"""Reading of single files of a checkpoint, with verification of type, size and SHA-256."""

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
    """Error for a damaged checkpoint; the message names the damaged file."""


class Unreadable(Damage):
    """Error for a checkpoint that may be undamaged, but cannot be read by this version or user; it is not skipped."""


class OtherVersion(Unreadable):
    """Checkpoint that another version of Shepherd wrote."""


def read_json(data: bytes, name: str) -> Any:
    """Parse JSON. Raise UserError with the file's name if it is invalid."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UserError(f"{name} is not valid JSON") from None


def read_whole(path: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """Return a file's content. Raise Damage if its size or SHA-256 differs from its entry in the manifest."""
    data = read(path, name, entry)
    if entry != {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
        raise Damage(f"{name} has changed since it was written")
    return data


def read(path: Path, name: str, entry: Any) -> bytes:
    """Return the content of a regular file of the expected size; raise Damage for links, pipes and devices."""
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

"""Single files of a checkpoint: regular ones of the size and digest that were written, or what is wrong with them."""

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
MANIFEST_LIMIT = 1 << 22  # bytes; a manifest has three entries, and one for each chunk


class Damage(Exception):
    """Fault of a checkpoint, naming the file."""


class Unreadable(Damage):
    """A checkpoint that may be good and cannot be read by this version, this user or now: never passed over."""


def read_json(data: bytes, name: str) -> Any:
    """The JSON value in a file's bytes; UserError, naming the file, where there is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UserError(f"{name} is not JSON that can be read") from None


def read_whole(path: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """A file's content; `Damage` where it is not of the size and SHA-256 of its entry."""
    data = read(path, name, entry)
    if entry != {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
        raise Damage(f"{name} is not what was written")
    return data


def read(path: Path, name: str, entry: Any) -> bytes:
    """A file's content, if it is a regular file of the size that was written; no link, pipe or device is followed."""
    try:
        descriptor = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as handle:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Damage(f"{name} is not a file")
            fits = status.st_size <= MANIFEST_LIMIT if entry is None else status.st_size == _size(entry)
            if not fits:
                raise Damage(f"{name} is not what was written")
            return handle.read()
    except OSError as error:
        kind = Unreadable if error.errno in TRANSIENT else Damage
        raise kind(f"{name} cannot be read ({error.strerror})") from None
    except MemoryError:
        raise Unreadable(f"{name} does not fit into memory") from None


def _size(entry: Any) -> Any:
    return entry.get("size") if isinstance(entry, dict) else None

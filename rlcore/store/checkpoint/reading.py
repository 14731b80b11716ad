"""Reading one checkpoint: what is returned is what was verified, byte for byte, or the file at fault is named."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import UserError
from rlcore.store.checkpoint import nested_state
from rlcore.store.checkpoint.sealed_json import unseal

FORMAT = 2
FILES = ("learning/state.json", "learning/tensors.safetensors", "bookkeeping/state.json")
FOLDERS = {
    "": {"manifest.json", "learning", "bookkeeping"},
    "learning": {"state.json", "tensors.safetensors"},
    "bookkeeping": {"state.json"},
}
TRANSIENT = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MANIFEST_LIMIT = 1 << 16  # bytes; a manifest has three entries


class Damage(Exception):
    """What is wrong with a checkpoint, naming the file."""


class Unreadable(Damage):
    """A checkpoint that may be good and cannot be read by this version, this user or now: never passed over."""


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The learning and bookkeeping states of a checkpoint, as `save` was given them; tuples come back as lists.

    They are made of the very bytes that were verified. `UserError`, naming the file, where it is damaged, of another
    format or holds what no `save` writes.
    """
    with in_a_sentence(path):
        return decode(read_files(path))


def decode(files: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learning and bookkeeping from the very bytes that were verified."""
    learning = nested_state.decode(
        files["learning/state.json"],
        files["learning/tensors.safetensors"],
        names=("learning/state.json", "learning/tensors.safetensors"),
    )
    bookkeeping = nested_state.read_json(files["bookkeeping/state.json"], "bookkeeping/state.json")
    for name, state in (("learning", learning), ("bookkeeping", bookkeeping)):
        if not isinstance(state, dict):
            raise Damage(f"{name}/state.json holds no state")
    return learning, bookkeeping


@contextmanager
def in_a_sentence(path: Path) -> Iterator[None]:
    """Tell what is wrong with a checkpoint as a `UserError` that names it."""
    try:
        yield
    except (Damage, UserError) as wrong:
        raise UserError(f"checkpoint {path}: {wrong}; choose another with --checkpoint") from None


def manifest(path: Path) -> dict[str, Any]:
    """format, env_steps, files {name: {size, sha256}}, digest: SHA-256 over the learning part's names and hashes."""
    with in_a_sentence(path):
        content = read_manifest(path)
    learned = {name: entry["sha256"] for name, entry in content["files"].items() if name.startswith("learning/")}
    return content | {"digest": hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()}


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file, or None when every byte is as it was written."""
    try:
        read_files(path)
    except Damage as wrong:
        return str(wrong)
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """format, env_steps, files {name: {size, sha256}}; `Damage` where they are not what was written here."""
    data = _read(path, "manifest.json", None)
    try:
        content = unseal(data)
    except ValueError:
        other = _format(data)
        if other not in (None, FORMAT):
            raise Unreadable(f"manifest.json is of format {other}, this version reads {FORMAT}") from None
        raise Damage("manifest.json is not what was written") from None
    if content.get("format") != FORMAT:
        raise Damage(f"manifest.json is of another format than {FORMAT}, which this version reads")
    files = content.get("files")
    if not isinstance(files, dict) or set(files) != set(FILES) or str(content.get("env_steps")) != path.absolute().name:
        raise Damage("manifest.json does not belong to it")
    return content


def _format(data: bytes) -> int | None:
    """The format that a manifest which we did not write names."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    number = content.get("format") if isinstance(content, dict) else None
    return number if isinstance(number, int) else None


def read_files(path: Path) -> dict[str, bytes]:
    """The contents of a checkpoint's `FILES` by name; `Damage` where one byte is not as its manifest says."""
    entries = read_manifest(path)["files"]
    for folder, expected in FOLDERS.items():
        _check_folder(path, folder, expected)
    contents = {}
    for name in FILES:
        data = contents[name] = _read(path, name, entries[name])
        if entries[name] != {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}:
            raise Damage(f"{name} is not what was written")
    return contents


def _check_folder(path: Path, folder: str, expected: set[str]) -> None:
    try:
        if folder and not stat.S_ISDIR((path / folder).lstat().st_mode):
            raise Damage(f"{folder} is not a folder")
        strange = sorted(set(os.listdir(path / folder)) ^ expected)
    except OSError as error:
        kind = Unreadable if error.errno in TRANSIENT else Damage
        raise kind(f"{folder or path.name} cannot be read ({error.strerror})") from None
    if strange:
        wrong = "is missing" if strange[0] in expected else "does not belong to it"
        # repr: the name is somebody else's, and may hold what moves a terminal's cursor
        raise Damage(f"{os.path.join(folder, strange[0])!r} {wrong}")


def _read(path: Path, name: str, entry: Any) -> bytes:
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

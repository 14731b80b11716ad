"""Reading and verification of a complete checkpoint. Error messages name the damaged file."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import UserError
from rlcore.store.checkpoint.chunks import FOLDER as CHUNKS
from rlcore.store.checkpoint.chunks import chunk_of
from rlcore.store.checkpoint.files import TRANSIENT, Damage, OtherVersion, Unreadable, read, read_json, read_whole
from rlcore.store.checkpoint.sealed_json import unseal
from rlcore.store.run_files import describe_other_format

FORMAT = 3  # Shepherd 0.1.0 wrote 2
FILES = ("learning/state.json", "learning/tensors.safetensors", "bookkeeping/state.json")
FOLDERS = {
    "": {"manifest.json", "learning", "bookkeeping"},
    "learning": {"state.json", "tensors.safetensors"},
    "bookkeeping": {"state.json"},
}


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the learning state and the bookkeeping state of a checkpoint, after verification of its files.

    A chunk (file that several checkpoints share) is read and verified later, when its method `columns` is called.

    Args:
        path: the checkpoint's directory.

    Returns:
        The learning state and the bookkeeping state that were passed to `save`, with lists in place of tuples.

    Raises:
        UserError: the checkpoint is damaged, or was written by another version of Shepherd.
    """
    with in_a_sentence(path):
        return decode(read_files(path), path)


def decode(files: Mapping[str, bytes], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Decode the learning state and the bookkeeping state of a checkpoint.

    Args:
        files: name -> content of the checkpoint's files, from `read_files`.
        path: the checkpoint's directory; chunks are read from its parent when their method `columns` is called.

    Returns:
        The learning state and the bookkeeping state.
    """
    from rlcore.store.checkpoint import nested_state  # torch

    learning = nested_state.decode(
        files["learning/state.json"],
        files["learning/tensors.safetensors"],
        names=("learning/state.json", "learning/tensors.safetensors"),
        chunk=functools.partial(chunk_of, directory=path.absolute().parent),
    )
    if not isinstance(learning, dict):
        raise Damage("learning/state.json does not contain a mapping")
    return learning, decode_bookkeeping(files)


def decode_bookkeeping(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Decode the bookkeeping state from the result of `read_files`, without importing torch."""
    name = "bookkeeping/state.json"
    bookkeeping = read_json(files[name], name)
    if not isinstance(bookkeeping, dict):
        raise Damage(f"{name} does not contain a mapping")
    return bookkeeping


@contextmanager
def in_a_sentence(path: Path) -> Iterator[None]:
    """Context manager that converts errors about a checkpoint to UserError, with the checkpoint's path and a fix."""
    try:
        yield
    except OtherVersion as wrong:
        raise UserError(f"checkpoint {path}: {wrong}") from None
    except (Damage, UserError) as wrong:
        raise UserError(f"checkpoint {path}: {wrong}; choose another checkpoint") from None


def manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, with a digest of its learning state.

    Args:
        path: the checkpoint's directory.

    Returns:
        Keys: format; policy_steps; files {name: {size, sha256}}; digest, the SHA-256 over names and hashes of the files
        in `learning`; chunks {name: {size, sha256}}, if there are any; scheduled, which is False if the checkpoint was
        written because of an evaluation or an interruption.

    Raises:
        UserError: the manifest is damaged or was written by another version of Shepherd.
    """
    with in_a_sentence(path):
        content = read_manifest(path)
    learned = {name: entry["sha256"] for name, entry in content["files"].items() if name.startswith("learning/")}
    return content | {"digest": hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()}


def damage(path: Path, with_chunks: bool = True) -> str | None:
    """Verify a checkpoint and return a description of the damage.

    Args:
        path: the checkpoint's directory.
        with_chunks: if True, also verify the chunks, such as the rows of a replay buffer. They can be large, and are
            needed only to resume training, not to load the policy.

    Returns:
        The name of the damaged file and what is wrong with it; None if the checkpoint is undamaged.
    """
    try:
        read_files(path, with_chunks)
    except Damage as wrong:
        return str(wrong)
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify manifest.json of a checkpoint.

    Args:
        path: the checkpoint's directory.

    Returns:
        The content: format, policy_steps, files {name: {size, sha256}} and optional keys (see `manifest`).

    Raises:
        Damage: the manifest is damaged or belongs to another checkpoint.
        OtherVersion: another version of Shepherd wrote the manifest.
    """
    data = read(path, "manifest.json", None)
    other = _format(data)
    if other not in (None, FORMAT):
        raise OtherVersion(f"manifest.json {describe_other_format(other, FORMAT)}")
    try:
        content = unseal(data)
    except ValueError:
        raise Damage("manifest.json has changed since it was written") from None
    if other is None:
        raise Damage(f"manifest.json does not have format {FORMAT}, which this version reads")
    files = content.get("files")
    if not isinstance(content.get("chunks", {}), dict):
        raise Damage("manifest.json has changed since it was written")
    steps = content.get("policy_steps")
    if not isinstance(files, dict) or set(files) != set(FILES) or str(steps) != path.absolute().name:
        raise Damage("manifest.json does not belong to this checkpoint")
    return content


def _format(data: bytes) -> int | None:
    """Return the format number in the content of a manifest; None if it is damaged."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    number = content.get("format") if isinstance(content, dict) else None
    return number if isinstance(number, int) else None


def read_files(path: Path, with_chunks: bool = False) -> dict[str, bytes]:
    """Read and verify the files of a checkpoint, which contain its learning state and its bookkeeping state.

    Args:
        path: the checkpoint's directory.
        with_chunks: if True, also verify the chunks, without returning their contents.

    Returns:
        The contents of the three files in `FILES`, by name.

    Raises:
        Damage: a file differs from the manifest, is missing, or does not belong to the checkpoint.
    """
    manifest = read_manifest(path)
    entries = manifest["files"]
    for folder, expected in FOLDERS.items():
        _check_folder(path, folder, expected)
    for name, entry in manifest.get("chunks", {}).items() if with_chunks else ():
        read_whole(path.parent, f"{CHUNKS}/{name}", entry)
    return {name: read_whole(path, name, entries[name]) for name in FILES}


def _check_folder(path: Path, folder: str, expected: set[str]) -> None:
    try:
        if folder and not stat.S_ISDIR((path / folder).lstat().st_mode):
            raise Damage(f"{folder} is not a folder")
        strange = sorted(set(os.listdir(path / folder)) ^ expected)
    except OSError as error:
        kind = Unreadable if error.errno in TRANSIENT else Damage
        raise kind(f"{folder or path.name} cannot be read ({error.strerror})") from None
    if strange:
        wrong = "is missing" if strange[0] in expected else "does not belong to this checkpoint"
        # repr, because the name is not trusted and can contain control characters
        raise Damage(f"{os.path.join(folder, strange[0])!r} {wrong}")

"""Reading one checkpoint: what is returned is what was verified, byte for byte, or the file at fault is named."""

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
from rlcore.store.checkpoint.files import TRANSIENT, Damage, Unreadable, read, read_json, read_whole
from rlcore.store.checkpoint.sealed_json import unseal

FORMAT = 2
FILES = ("learning/state.json", "learning/tensors.safetensors", "bookkeeping/state.json")
FOLDERS = {
    "": {"manifest.json", "learning", "bookkeeping"},
    "learning": {"state.json", "tensors.safetensors"},
    "bookkeeping": {"state.json"},
}


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The learning and bookkeeping states of a checkpoint, as `save` was given them; tuples come back as lists.

    They are made of the very bytes that were verified; a chunk is read and verified when its columns are asked for.
    `UserError`, naming the file, where it is damaged, of another format or holds what no `save` writes.
    """
    with in_a_sentence(path):
        return decode(read_files(path), path)


def decode(files: Mapping[str, bytes], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learning and bookkeeping from the very bytes of a checkpoint that were verified; chunks are read when wanted."""
    from rlcore.store.checkpoint import nested_state  # torch

    learning = nested_state.decode(
        files["learning/state.json"],
        files["learning/tensors.safetensors"],
        names=("learning/state.json", "learning/tensors.safetensors"),
        chunk=functools.partial(chunk_of, directory=path.absolute().parent),
    )
    if not isinstance(learning, dict):
        raise Damage("learning/state.json holds no state")
    return learning, decode_bookkeeping(files)


def decode_bookkeeping(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Bookkeeping alone, for which no torch is needed, from the very bytes of a checkpoint that were verified."""
    name = "bookkeeping/state.json"
    bookkeeping = read_json(files[name], name)
    if not isinstance(bookkeeping, dict):
        raise Damage(f"{name} holds no state")
    return bookkeeping


@contextmanager
def in_a_sentence(path: Path) -> Iterator[None]:
    """Tell what is wrong with a checkpoint as a `UserError` that names it."""
    try:
        yield
    except (Damage, UserError) as wrong:
        raise UserError(f"checkpoint {path}: {wrong}; choose another checkpoint") from None


def manifest(path: Path) -> dict[str, Any]:
    """format, policy_steps, files {name: {size, sha256}}, digest: SHA-256 over the learning part's names and hashes."""
    with in_a_sentence(path):
        content = read_manifest(path)
        if "policy_steps" not in content:
            content["policy_steps"] = _read_policy_steps(path, content)
    learned = {name: entry["sha256"] for name, entry in content["files"].items() if name.startswith("learning/")}
    return content | {"digest": hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()}


def _read_policy_steps(path: Path, content: Mapping[str, Any]) -> int:
    """The policy steps of a checkpoint that an earlier version called by its env steps."""
    name = "learning/state.json"
    state = json.loads(read_whole(path, name, content["files"][name]))
    try:
        for key in ("ranks", "0", "collector", "policy_steps"):
            state = dict(state["items"])[key]
    except KeyError:  # of a version that did not count them
        return content["env_steps"]
    return state


def damage(path: Path, with_chunks: bool = True) -> str | None:
    """Fault of a checkpoint, naming the file, or None when every byte is as it was written.

    Without its chunks, what a policy needs is read and nothing else: a replay memory may be many times as large.
    """
    try:
        read_files(path, with_chunks)
    except Damage as wrong:
        return str(wrong)
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """format, policy_steps, files {name: {size, sha256}}; `Damage` where they are not what was written here.

    Earlier versions have `env_steps` in place of policy_steps, and in the checkpoint's name.
    """
    data = read(path, "manifest.json", None)
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
    if not isinstance(content.get("chunks", {}), dict):
        raise Damage("manifest.json is not what was written")
    steps = str(content.get("policy_steps", content.get("env_steps")))
    if not isinstance(files, dict) or set(files) != set(FILES) or steps != path.absolute().name:
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


def read_files(path: Path, with_chunks: bool = False) -> dict[str, bytes]:
    """The contents of a checkpoint's `FILES` by name; `Damage` where one byte is not as its manifest says.

    `with_chunks` verifies the chunks as well.
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
        wrong = "is missing" if strange[0] in expected else "does not belong to it"
        # repr: the name is somebody else's, and may hold what moves a terminal's cursor
        raise Damage(f"{os.path.join(folder, strange[0])!r} {wrong}")

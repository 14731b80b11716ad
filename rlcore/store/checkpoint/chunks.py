"""Chunks: parts of the learning state that no longer change, such as older rows of a replay buffer.

    checkpoints/chunks/<first 32 digits of the file's SHA-256>.safetensors

Each chunk is a file that several checkpoints share, so that a new checkpoint only writes data that was added since the
previous one. A chunk is removed when no checkpoint refers to it any more.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import DiskFault, UserError
from rlcore.store.checkpoint.files import Damage, read_whole
from rlcore.system.durable import make_directory, sync_directory, write_synced
from rlcore.types import Chunk

if TYPE_CHECKING:
    import torch

FOLDER = "chunks"  # next to the checkpoints


def chunks_of(state: Any) -> Iterator[Chunk]:
    """Yield all chunks in a nested state of dicts, lists and tuples."""
    if isinstance(state, Chunk):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from chunks_of(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from chunks_of(value)


def write_chunks(directory: Path, state: Any) -> None:
    """Write all chunks of a state to disk, except those that are stored already. The files are durable on return.

    Args:
        directory: the run's `checkpoints` folder.
        state: nested state with chunks. The attribute `stored` of each written chunk is set to its manifest entry.

    Raises:
        DiskFault: the write failed.
    """
    folder = directory / FOLDER
    new = [chunk for chunk in chunks_of(state) if not _there(chunk, folder)]
    try:
        if new:
            make_directory(folder)
        for chunk in new:
            chunk.stored[str(folder.absolute())] = _write(chunk, folder)
        if new:
            sync_directory(folder)
    except OSError as error:
        raise DiskFault(f"{folder} could not be written ({error.strerror or error})") from error


def _there(chunk: Chunk, folder: Path) -> bool:
    entry = chunk.stored.get(str(folder.absolute()))
    return entry is not None and (folder / entry["file"]).exists()


def digest(chunk: Chunk) -> str:
    """Return the SHA-256 that the file of a chunk has, or will have once it is written."""
    for entry in chunk.stored.values():
        return entry["sha256"]
    return hashlib.sha256(_content(chunk)).hexdigest()


def _content(chunk: Chunk) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in chunk.columns().items()})


def _write(chunk: Chunk, folder: Path) -> dict[str, Any]:
    content = _content(chunk)
    sha256 = hashlib.sha256(content).hexdigest()
    path = folder / f"{sha256[:32]}.safetensors"
    if not path.exists() or path.read_bytes() != content:  # a process that was killed may have written it already
        temporary = folder / f".{path.name}.tmp-{os.getpid()}"
        write_synced(temporary, content)
        os.rename(temporary, path)
    return {"file": path.name, "size": len(content), "sha256": sha256}


def entry_of(chunk: Chunk, directory: Path) -> dict[str, Any]:
    """Return the manifest entry (file, size, sha256) of a chunk that `write_chunks` has written."""
    return chunk.stored[str((directory / FOLDER).absolute())]


def chunk_of(entry: Any, directory: Path) -> Chunk:
    """Return a chunk whose file is read later, when its method `columns` is called.

    That call verifies the file, and raises UserError if it is damaged.

    Args:
        entry: manifest entry of the chunk (file, size, sha256), read from a checkpoint. Any JSON value is accepted.
        directory: the run's `checkpoints` folder.

    Returns:
        The chunk.

    Raises:
        ValueError: `entry` is not a valid manifest entry.
    """
    if not isinstance(entry, dict) or set(entry) != {"file", "size", "sha256"}:
        raise ValueError("the manifest entry of a chunk must have exactly the keys file, size and sha256")
    if not re.fullmatch(r"[0-9a-f]{32}\.safetensors", str(entry["file"])):
        raise ValueError("the file name of a chunk must be 32 hexadecimal digits and .safetensors")
    return Chunk(functools.partial(_read, directory, entry), {str((directory / FOLDER).absolute()): entry})


def _read(directory: Path, entry: dict[str, Any]) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    try:
        return load(read_whole(directory, f"{FOLDER}/{entry['file']}", {k: entry[k] for k in ("size", "sha256")}))
    except Damage as wrong:
        raise UserError(f"{directory}: {wrong}; choose a checkpoint that does not use this chunk") from None


def sweep(directory: Path, wanted: Collection[str]) -> None:
    """Remove all files in the folder of chunks, except those whose names are in `wanted`."""
    folder = directory / FOLDER
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink(missing_ok=True)

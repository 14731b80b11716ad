"""Chunks: parts of a state that never change again, each written once beside the checkpoints that refer to it.

    checkpoints/chunks/<32 digits of its SHA-256>.safetensors

A checkpoint costs what is new since the last one. A chunk that no checkpoint refers to any more is removed.
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

FOLDER = "chunks"  # beside the checkpoints


def chunks_of(state: Any) -> Iterator[Chunk]:
    """The chunks of a nested state."""
    if isinstance(state, Chunk):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from chunks_of(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from chunks_of(value)


def write_chunks(directory: Path, state: Any) -> None:
    """Make every chunk of a state durable that is not there yet; a DiskFault where the disk refuses.

    Args:
        directory: the run's `checkpoints` folder.
        state: nested; its chunks know afterwards where they lie.
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
    """SHA-256 of the file that a chunk is or would be, wherever it is stored."""
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
    if not path.exists() or path.read_bytes() != content:  # a killed process may have written it before
        temporary = folder / f".{path.name}.tmp-{os.getpid()}"
        write_synced(temporary, content)
        os.rename(temporary, path)
    return {"file": path.name, "size": len(content), "sha256": sha256}


def entry_of(chunk: Chunk, directory: Path) -> dict[str, Any]:
    """file, size and sha256 of a chunk that `write_chunks` has made durable."""
    return chunk.stored[str((directory / FOLDER).absolute())]


def chunk_of(entry: Any, directory: Path) -> Chunk:
    """The chunk that an entry of a checkpoint speaks of; its file is read, and verified, when it is asked for.

    A `UserError` names the file then, where it is damaged. `ValueError` where `write_chunks` never made such an entry,
    which may be anybody's.
    """
    if not isinstance(entry, dict) or set(entry) != {"file", "size", "sha256"}:
        raise ValueError("no chunk")
    if not re.fullmatch(r"[0-9a-f]{32}\.safetensors", str(entry["file"])):
        raise ValueError("no chunk's name")
    return Chunk(functools.partial(_read, directory, entry), {str((directory / FOLDER).absolute()): entry})


def _read(directory: Path, entry: dict[str, Any]) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    try:
        return load(read_whole(directory, f"{FOLDER}/{entry['file']}", {k: entry[k] for k in ("size", "sha256")}))
    except Damage as wrong:
        raise UserError(f"{directory}: {wrong}; choose a checkpoint that does without it") from None


def sweep(directory: Path, wanted: Collection[str]) -> None:
    """Remove all chunks but those of these names."""
    folder = directory / FOLDER
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink(missing_ok=True)

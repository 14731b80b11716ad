"""Durable and atomic writing of a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import DiskFault
from rlcore.store.checkpoint import chunks
from rlcore.store.checkpoint.reading import FORMAT, damage
from rlcore.store.checkpoint.sealed_json import seal
from rlcore.system.durable import make_directory, sync_directory, write_synced

log = logging.getLogger(__name__)


def save(
    directory: Path,
    policy_steps: int,
    learning: Mapping[str, Any],
    bookkeeping: Mapping[str, Any],
    replace: bool = False,
    scheduled: bool = True,
) -> Path:
    """Write a checkpoint durably and atomically.

    If the free disk space is less than twice the size of the checkpoint, a warning is logged. The checkpoint is
    written anyway: training may end before the disk is full, and a failed write does not damage existing checkpoints.

    Args:
        directory: the run's `checkpoints` folder.
        policy_steps: number of policy steps of the run so far, which is the name of the checkpoint.
        learning: learning state: nested dicts and lists of tensors, arrays, chunks and JSON values.
        bookkeeping: other state of the run, such as times and versions: JSON values.
        replace: if True, overwrite an existing checkpoint at the same number of policy steps. If False, an undamaged
            one is kept, because training is deterministic and would write the same bits.
        scheduled: False for a checkpoint that was written because of an evaluation or an interruption;
            `checkpoint.keep_last` does not count it.

    Returns:
        The checkpoint's directory.

    Raises:
        DiskFault: the write failed; existing checkpoints are unchanged.
    """
    final = directory / str(policy_steps)
    temporary = directory / f".{policy_steps}.tmp-{os.getpid()}"
    try:
        make_directory(directory)
        remove_leftovers(directory)
        if replace or not final.exists() or damage(final):
            _write(temporary, policy_steps, learning, bookkeeping, scheduled)
            move_aside(final)
            os.rename(temporary, final)
        sync_directory(directory)  # also for an existing one: its writer may have died before this line
    except OSError as error:
        _remove(temporary)
        raise DiskFault(
            f"checkpoint {final} could not be written ({error.strerror or error}); older ones are untouched"
        ) from error
    remove_leftovers(directory)
    return final


def _write(
    folder: Path, policy_steps: int, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any], scheduled: bool
) -> None:
    from rlcore.store.checkpoint import nested_state  # torch

    chunks.write_chunks(folder.parent, learning)
    state, tensors = nested_state.encode(learning, functools.partial(chunks.entry_of, directory=folder.parent))
    files = {
        "learning/state.json": state,
        "learning/tensors.safetensors": tensors,
        "bookkeeping/state.json": json.dumps(bookkeeping, sort_keys=True, indent=1).encode(),
    }
    _warn_of_space(folder.parent, sum(map(len, files.values())))
    for part in (folder, folder / "learning", folder / "bookkeeping"):
        part.mkdir()
    for name, content in files.items():
        write_synced(folder / name, content)
    entries = {name: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for name, c in files.items()}
    parts = [chunks.entry_of(chunk, folder.parent) for chunk in chunks.chunks_of(learning)]
    manifest = {"format": FORMAT, "policy_steps": policy_steps, "files": entries}
    manifest |= {"chunks": {part["file"]: {k: part[k] for k in ("size", "sha256")} for part in parts}} if parts else {}
    manifest |= {} if scheduled else {"scheduled": False}
    write_synced(folder / "manifest.json", seal(manifest))
    for part in (folder / "learning", folder / "bookkeeping", folder):
        sync_directory(part)


def _warn_of_space(directory: Path, size: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < 2 * size:
        log.warning("%s: only %d bytes are free, a checkpoint takes %d; free some space", directory, free, size)


def move_aside(path: Path) -> None:
    """Rename a checkpoint to a temporary name before its removal.

    The renaming is atomic, so that no partly removed checkpoint remains if the process is killed during the removal.
    """
    if os.path.lexists(path):
        os.rename(path, path.with_name(f".{path.name}.tmp-{os.getpid()}-old"))


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary folders of checkpoints, including those of processes that were killed.

    The run's lock ensures that no other process writes checkpoints at the same time. If a removal fails, it is repeated
    when the next checkpoint is written.
    """
    for leftover in directory.glob(".[0-9]*.tmp-*"):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

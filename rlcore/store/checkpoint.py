"""Checkpoints: directories that are either whole and verified or not there.

    checkpoints/<env_steps>/manifest.json           every file's size and SHA-256; format; env_steps; its own SHA-256
                            learning/state.json     nested state, tensors replaced by their names
                            learning/tensors.safetensors
                            bookkeeping/state.json  times, metric windows, versions, the fingerprint
    checkpoints/names.json                          which are `latest` and `best`; its own SHA-256

Committed by: files in a directory beside the final name, each fsynced; manifest, fsync; rename; fsync of the parent;
only then are older ones removed. Reading never unpickles: JSON and safetensors. No other folder plays a part, not even
TMPDIR.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import RunError, UserError
from rlcore.store import tree
from rlcore.store.directory import RunDirectory, write_text
from rlcore.store.events import read_events
from rlcore.store.sealed import seal, unseal
from rlcore.store.verified import FORMAT, Damage, Unreadable, read_files, read_manifest
from rlcore.system.durable import make_directory, sync_directory, write_synced

log = logging.getLogger(__name__)


def save(directory: Path, env_steps: int, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> Path:
    """Write one checkpoint durably.

    A disk with less free space than two of it is warned of and tried all the same: training may end before the disk is
    full, and a full one costs nothing that is there already.

    Args:
        directory: the run's `checkpoints` folder.
        env_steps: names the checkpoint; one of that name that verifies is kept instead.
        learning: nested dicts and lists of tensors, arrays and JSON values.
        bookkeeping: JSON values.

    Returns:
        The checkpoint's directory.

    Raises:
        RunError: the disk refused; what was there before is untouched.
    """
    final = directory / str(env_steps)
    temporary = directory / f".{env_steps}.tmp-{os.getpid()}"
    try:
        make_directory(directory)
        _remove_leftovers(directory)
        if not final.exists() or damage(final):
            _write(temporary, env_steps, learning, bookkeeping)
            _move_aside(final)
            os.rename(temporary, final)
        sync_directory(directory)  # also for one that is there: its writer may have died before this line
    except OSError as error:
        _remove(temporary)
        raise RunError(
            f"checkpoint {final} could not be written ({error.strerror or error}); older ones are untouched"
        ) from error
    _remove_leftovers(directory)
    return final


def _write(folder: Path, env_steps: int, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> None:
    state, tensors = tree.encode(learning)
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
    write_synced(folder / "manifest.json", seal({"format": FORMAT, "env_steps": env_steps, "files": entries}))
    for part in (folder / "learning", folder / "bookkeeping", folder):
        sync_directory(part)


def _warn_of_space(directory: Path, size: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < 2 * size:
        log.warning("%s: %d bytes are free and a checkpoint takes %d; free some space", directory, free, size)


def _move_aside(path: Path) -> None:
    """Take a checkpoint's name from it in one step, so that a kill leaves no half of it under that name."""
    if os.path.lexists(path):
        os.rename(path, path.with_name(f".{path.name}.tmp-{os.getpid()}-old"))


def _remove_leftovers(directory: Path) -> None:
    """Remove what has no name any more, and what a killed writer left; the run's lock sees to it that no other writes.

    What the disk does not let go is tried again with the next checkpoint.
    """
    for leftover in directory.glob(".[0-9]*.tmp-*"):
        _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The learning and bookkeeping states of a checkpoint, from the very bytes that were verified.

    Args:
        path: the checkpoint's directory.

    Returns:
        What `save` was given; tuples come back as lists.

    Raises:
        UserError: it is damaged, of another format or holds what no `save` writes; names the file.
    """
    with _in_a_sentence(path):
        return _decode(read_files(path))


def load_newest(directory: Path) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """The newest checkpoint that verifies, as `newest_good` finds it, and what it holds, as `load` gives it.

    Args:
        directory: the run's `checkpoints` folder.

    Returns:
        Its directory, learning and bookkeeping; None where none verifies.

    Raises:
        UserError: one that may be good cannot be read, or one that verifies holds what no `save` writes.
    """
    found = _newest_verified(directory)
    if found is None:
        return None
    path, files = found
    with _in_a_sentence(path):
        return path, *_decode(files)


def _decode(files: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learning and bookkeeping from the very bytes that were verified."""
    learning = tree.decode(
        files["learning/state.json"],
        files["learning/tensors.safetensors"],
        names=("learning/state.json", "learning/tensors.safetensors"),
    )
    bookkeeping = tree.read_json(files["bookkeeping/state.json"], "bookkeeping/state.json")
    for name, state in (("learning", learning), ("bookkeeping", bookkeeping)):
        if not isinstance(state, dict):
            raise Damage(f"{name}/state.json holds no state")
    return learning, bookkeeping


@contextmanager
def _in_a_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damage, UserError) as wrong:
        raise UserError(f"checkpoint {path}: {wrong}; choose another with --checkpoint") from None


def manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, with `digest`: SHA-256 over the names and hashes of its learning part.

    Args:
        path: the checkpoint's directory.

    Returns:
        format, env_steps, files {name: {size, sha256}}, digest.

    Raises:
        UserError: the manifest is damaged.
    """
    with _in_a_sentence(path):
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


def newest_first(directory: Path) -> Iterator[Path]:
    """Checkpoints of a run by falling env steps, damaged ones too."""
    names = [p for p in directory.iterdir() if _numbered(p.name)] if directory.is_dir() else []
    yield from sorted(names, key=lambda p: -int(p.name))


def _numbered(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 20


def newest_good(directory: Path) -> Path | None:
    """The newest checkpoint that verifies; says loudly which were skipped and why.

    Args:
        directory: the run's `checkpoints` folder.

    Returns:
        Its directory, or None.

    Raises:
        UserError: one that may be good cannot be read: of another format, or not ours to read.
    """
    found = _newest_verified(directory)
    return found and found[0]


def _newest_verified(directory: Path) -> tuple[Path, dict[str, bytes]] | None:
    for path in newest_first(directory):
        try:
            return path, read_files(path)
        except Unreadable as wrong:
            raise UserError(f"checkpoint {path}: {wrong}; mend that, or go on with the version that wrote it") from None
        except Damage as wrong:
            log.warning("checkpoint %s is damaged and was skipped: %s", path, wrong)
    return None


def resolve(run: RunDirectory, name: str | int = "latest") -> Path:
    """The checkpoint that `latest`, `best` or a number of env steps names.

    Args:
        run: whose.
        name: latest, best or env steps.

    Returns:
        The checkpoint's directory.

    Raises:
        UserError: there is none of that name; lists those there are.
    """
    there = [p.name for p in newest_first(run.checkpoints)]
    if not there:
        raise UserError(f"{run.path}: no checkpoint yet")
    if str(name) == "latest":
        good = newest_good(run.checkpoints)
        if good is None:
            raise UserError(f"{run.path}: every checkpoint is damaged ({', '.join(there)})")
        return good
    if str(name) == "best":
        best = _names(run).get("best")
        if best not in there:
            raise UserError(f"{run.path}: no best checkpoint yet; use latest or one of {', '.join(there)}")
        return run.checkpoints / str(best)
    if str(name) not in there:
        raise UserError(f"--checkpoint {name}: must be latest, best or one of {', '.join(there)}")
    return run.checkpoints / str(name)


def chosen(run: RunDirectory) -> Path:
    """The checkpoint that stands for a run: the best by the evaluations while training, else the latest."""
    try:
        path = resolve(run, "best")
    except UserError:
        return resolve(run, "latest")
    wrong = damage(path)
    if wrong is None:
        return path
    log.warning("best checkpoint %s is damaged (%s); the latest stands in for it", path, wrong)
    return resolve(run, "latest")


def prune(run: RunDirectory, keep: int | None, saved: Path) -> None:
    """Let `latest` name a checkpoint and remove all but the newest `keep` up to it, and the best. Never fails a run.

    Those beyond it are damaged ones that a resume skipped: they count for nothing here, and training writes them anew
    when it comes there.

    Args:
        run: whose.
        keep: how many; None = all.
        saved: the checkpoint that was just made durable.
    """
    try:
        names = _names(run) | {"latest": saved.name}
        _write_names(run, names)
        before = [path for path in newest_first(run.checkpoints) if int(path.name) <= int(saved.name)]
        for path in before[keep:] if keep is not None else []:
            if path.name != names.get("best"):
                _move_aside(path)
        _remove_leftovers(run.checkpoints)
    except (OSError, RunError) as error:
        log.warning("%s: older checkpoints stay for now: %s", run.checkpoints, error)


def name_best(run: RunDirectory, env_steps: int) -> None:
    """Let `best` name the checkpoint at `env_steps`; RunError when the disk refuses."""
    _write_names(run, _names(run) | {"best": str(env_steps)})


def _write_names(run: RunDirectory, names: Mapping[str, str]) -> None:
    write_text(run.names, seal(names).decode())


def _names(run: RunDirectory) -> dict[str, str]:
    """`latest` and `best` as far as there are any; a damaged file is made good from the event log, and it is said."""
    try:
        names = unseal(run.names.read_bytes())
        if all(_numbered(name) for name in names.values()):
            return names
        wrong = "it names no checkpoint"
    except FileNotFoundError:
        return _best_of_log(run)
    except (OSError, ValueError) as error:
        wrong = str(error)
    log.warning("%s is damaged (%s): the best checkpoint is found anew from the event log", run.names, wrong)
    return _best_of_log(run)


def _best_of_log(run: RunDirectory) -> dict[str, str]:
    """The last evaluation while training that was as good as any before it."""
    events = [e for e in read_events(run.events) if e["kind"] == "evaluation" and not e["final"]]
    best = max(events, key=lambda e: (e["greedy"]["mean"], e["env_steps"]), default=None)
    return {"best": str(best["env_steps"])} if best else {}

"""Checkpoints: directories that are either whole and verified or not there.

    checkpoints/<env_steps>/manifest.json           every file's size and SHA-256; format; env_steps
                            learning/state.json     nested state, tensors replaced by their names
                            learning/tensors.safetensors
                            bookkeeping/state.json  times, metric windows, versions, the fingerprint

Committed by: files in a directory beside the final name, each fsynced; manifest, fsync; rename; fsync of the parent;
only then are older ones removed. Reading never unpickles: JSON and safetensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import RunError, UserError
from rlcore.run import tree
from rlcore.run.directory import RunDirectory, write_json

FORMAT = 1
log = logging.getLogger(__name__)


def save(directory: Path, env_steps: int, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> Path:
    """Write one checkpoint durably.

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
        if final.exists():
            if not damage(final):
                return final
            shutil.rmtree(final)
        _discard_leftovers(directory)
        _write(temporary, env_steps, learning, bookkeeping)
        os.rename(temporary, final)
        sync_directory(directory)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"checkpoint {final} could not be written ({error.strerror or error}); older ones are untouched"
        ) from error
    return final


def _write(folder: Path, env_steps: int, learning: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> None:
    (folder / "learning").mkdir(parents=True)
    (folder / "bookkeeping").mkdir()
    state, tensors = tree.encode(learning)
    files = {
        "learning/state.json": state,
        "learning/tensors.safetensors": tensors,
        "bookkeeping/state.json": json.dumps(bookkeeping, sort_keys=True, indent=1).encode(),
    }
    entries = {}
    for name, content in files.items():
        _write_synced(folder / name, content)
        entries[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format": FORMAT, "env_steps": env_steps, "files": entries}
    _write_synced(folder / "manifest.json", json.dumps(manifest, sort_keys=True, indent=1).encode())
    for part in (folder / "learning", folder / "bookkeeping", folder):
        sync_directory(part)


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard_leftovers(directory: Path) -> None:
    """Remove what a killed writer left; the run's lock makes sure that no other is writing."""
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob(".*.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The learning and bookkeeping states of a verified checkpoint.

    Args:
        path: the checkpoint's directory.

    Returns:
        What `save` was given; tuples come back as lists.

    Raises:
        UserError: it is damaged or of another format; names the file.
    """
    wrong = damage(path)
    if wrong:
        raise UserError(f"checkpoint {path}: {wrong}; choose another with --checkpoint")
    folder = path / "learning"
    learning = tree.decode((folder / "state.json").read_bytes(), (folder / "tensors.safetensors").read_bytes())
    return learning, json.loads((path / "bookkeeping/state.json").read_bytes())


def manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, with `digest`: SHA-256 over the names and hashes of its learning part."""
    content = json.loads((path / "manifest.json").read_bytes())
    learned = {name: entry["sha256"] for name, entry in content["files"].items() if name.startswith("learning/")}
    return content | {"digest": hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()}


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file, or None when every byte is as it was written."""
    try:
        content = json.loads((path / "manifest.json").read_bytes())
        if content["format"] != FORMAT:
            return f"manifest.json is of format {content['format']}, this version reads {FORMAT}"
        expected = {"learning/state.json", "learning/tensors.safetensors", "bookkeeping/state.json"}
        found = {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()} - {"manifest.json"}
        if set(content["files"]) != expected or str(content["env_steps"]) != path.name.split(".")[0]:
            return "manifest.json does not belong to it"
        if found != expected:
            return f"{sorted(found ^ expected)[0]} is missing or does not belong to it"
        for name, entry in content["files"].items():
            data = (path / name).read_bytes()
            if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"manifest.json cannot be read ({type(error).__name__})"
    return None


def newest_first(directory: Path) -> Iterator[Path]:
    """Checkpoints of a run by falling env steps, damaged ones too."""
    names = [p for p in directory.iterdir() if p.name.isdigit()] if directory.is_dir() else []
    yield from sorted(names, key=lambda p: -int(p.name))


def newest_good(directory: Path) -> Path | None:
    """The newest checkpoint that verifies; says loudly which were skipped and why."""
    for path in newest_first(directory):
        wrong = damage(path)
        if wrong is None:
            return path
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
        best = json.loads(run.names.read_text()).get("best") if run.names.exists() else None
        if best is None or best not in there:
            raise UserError(f"{run.path}: no best checkpoint yet; use latest or one of {', '.join(there)}")
        return run.checkpoints / best
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


def prune(run: RunDirectory, keep: int | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best; writes `names.json`, never fails a run."""
    paths = list(newest_first(run.checkpoints))
    names = json.loads(run.names.read_text()) if run.names.exists() else {}
    names["latest"] = paths[0].name
    write_json(run.names, names)
    for path in paths[keep:] if keep is not None else []:
        if path.name != names.get("best"):
            shutil.rmtree(path, ignore_errors=True)


def name_best(run: RunDirectory, env_steps: int) -> None:
    """Let `best` name the checkpoint at `env_steps`."""
    names = json.loads(run.names.read_text()) if run.names.exists() else {}
    write_json(run.names, names | {"best": str(env_steps)})

"""Choose a checkpoint: the newest that is good, the latest, the best; and which of them are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import RunError, UserError
from rlcore.store.checkpoint import chunks
from rlcore.store.checkpoint.files import Damage, Unreadable
from rlcore.store.checkpoint.reading import (
    damage,
    decode,
    decode_bookkeeping,
    in_a_sentence,
    manifest,
    read_files,
    read_manifest,
)
from rlcore.store.checkpoint.sealed_json import seal, unseal
from rlcore.store.checkpoint.writing import move_aside, remove_leftovers
from rlcore.store.directory import RunDirectory, write_text
from rlcore.store.history import history

log = logging.getLogger(__name__)


def newest_first(directory: Path) -> Iterator[Path]:
    """Checkpoints of a run by falling policy steps, damaged ones too.

    Those of earlier versions are called by env steps, a few in a hundred less: the order is the same.
    """
    names = [p for p in directory.iterdir() if _is_numbered(p.name)] if directory.is_dir() else []
    yield from sorted(names, key=lambda p: -int(p.name))


def _is_numbered(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 20


def find(directory: Path, policy_steps: int) -> Path | None:
    """The checkpoint after so many policy steps, or None; one of an earlier version has another name."""
    if (directory / str(policy_steps)).exists():
        return directory / str(policy_steps)
    older = [path for path in newest_first(directory) if int(path.name) < policy_steps and not damage(path, False)]
    return next((path for path in older if manifest(path)["policy_steps"] == policy_steps), None)


def policy_steps(path: Path) -> int:
    """Policy steps of a checkpoint: its name, but for those of earlier versions and for damaged ones, as near it."""
    try:
        return manifest(path)["policy_steps"]
    except UserError:
        return int(path.name)


def newest_good(directory: Path, with_chunks: bool = False) -> Path | None:
    """The newest checkpoint that verifies, or None; says loudly which were skipped and why.

    One that may be good and cannot be read (of another format, or not ours to read) is never passed over: `UserError`.
    Its chunks are verified too where training is to go on from it; whoever wants the policy needs none of them.
    """
    found = _newest_verified(directory, with_chunks)
    return found and found[0]


def load_newest(directory: Path, with_chunks: bool = False) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """The newest checkpoint that verifies, as `newest_good` finds it, and what it holds, as `load` gives it."""
    found = _newest_verified(directory, with_chunks)
    if found is None:
        return None
    path, files = found
    with in_a_sentence(path):
        return path, *decode(files, path)


def newest_bookkeeping(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that verifies, as `newest_good` finds it, and its bookkeeping, which needs no torch."""
    found = _newest_verified(directory, with_chunks=False)
    if found is None:
        return None
    path, files = found
    with in_a_sentence(path):
        return path, decode_bookkeeping(files)


def _newest_verified(directory: Path, with_chunks: bool) -> tuple[Path, dict[str, bytes]] | None:
    for path in newest_first(directory):
        try:
            return path, read_files(path, with_chunks)
        except Unreadable as wrong:
            raise UserError(f"checkpoint {path}: {wrong}; mend that, or go on with the version that wrote it") from None
        except Damage as wrong:
            log.warning("checkpoint %s is damaged and was skipped: %s", path, wrong)
    return None


def resolve(run: RunDirectory, name: str | int = "latest") -> Path:
    """The checkpoint that `latest`, `best` or a number of policy steps names; a `UserError` lists those there are."""
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
        raise UserError(f"{run.path}: no checkpoint {name}; choose latest, best or one of {', '.join(there)}")
    return run.checkpoints / str(name)


def choose(run: RunDirectory) -> Path:
    """The checkpoint whose policy stands for a run: the best by the evaluations while training, else the latest."""
    try:
        path = resolve(run, "best")
    except UserError:
        return resolve(run, "latest")
    wrong = damage(path, with_chunks=False)
    if wrong is None:
        return path
    log.warning("best checkpoint %s is damaged (%s); the latest stands in for it", path, wrong)
    return resolve(run, "latest")


def prune(run: RunDirectory, keep: int | None, saved: Path) -> None:
    """Let `latest` name a checkpoint and remove older ones: all but it, the best and the newest `keep` scheduled ones.

    Those beyond it are damaged ones that a resume skipped: they count for nothing here, and training writes them anew
    when it comes there. A disk that refuses fails no run.

    Args:
        run: whose.
        keep: how many; None = all.
        saved: the checkpoint that was just made durable.
    """
    try:
        names = _names(run) | {"latest": saved.name}
        _write_names(run, names)
        before = [path for path in newest_first(run.checkpoints) if int(path.name) <= int(saved.name)]
        if keep is not None:
            kept = {saved.name, names.get("best"), *[path.name for path in before if _is_scheduled(path)][:keep]}
            for path in before:
                if path.name not in kept:
                    move_aside(path)
        remove_leftovers(run.checkpoints)
        if (run.checkpoints / chunks.FOLDER).is_dir():
            manifests = [read_manifest(path) for path in newest_first(run.checkpoints)]
            chunks.sweep(run.checkpoints, {name for each in manifests for name in each.get("chunks", {})})
    except (OSError, RunError, Damage) as error:
        log.warning("%s: older checkpoints stay for now: %s", run.checkpoints, error)


def _is_scheduled(path: Path) -> bool:
    """Return whether a checkpoint counts for `checkpoint.keep_last`; those of earlier versions and damaged ones do."""
    try:
        return read_manifest(path).get("scheduled", True) is not False
    except Damage:
        return True


def name_best(run: RunDirectory, path: Path) -> None:
    """Let `best` name this checkpoint; `DiskFault` where the disk refuses."""
    _write_names(run, _names(run) | {"best": path.name})


def _write_names(run: RunDirectory, names: Mapping[str, str]) -> None:
    write_text(run.names, seal(names).decode())


def _names(run: RunDirectory) -> dict[str, str]:
    """`latest` and `best` as far as there are any; a damaged file is made good from the event log, and it is said."""
    try:
        names = unseal(run.names.read_bytes())
        if all(_is_numbered(name) for name in names.values()):
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
    events = history(run.events).evaluations
    best = max(events, key=lambda e: (e["greedy"]["mean"], e["policy_steps"]), default=None)
    path = find(run.checkpoints, best["policy_steps"]) if best else None
    return {"best": path.name} if path else {}

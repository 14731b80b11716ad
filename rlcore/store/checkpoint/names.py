"""Choice of checkpoints (newest, latest, best), and removal of old ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import RunError, UserError
from rlcore.store.checkpoint import chunks
from rlcore.store.checkpoint.files import Damage, OtherVersion, Unreadable
from rlcore.store.checkpoint.reading import (
    damage,
    decode,
    decode_bookkeeping,
    in_a_sentence,
    read_files,
    read_manifest,
)
from rlcore.store.checkpoint.sealed_json import seal, unseal
from rlcore.store.checkpoint.writing import move_aside, remove_leftovers
from rlcore.store.directory import RunDirectory, write_text
from rlcore.store.history import history

log = logging.getLogger(__name__)


def newest_first(directory: Path) -> Iterator[Path]:
    """Yield the checkpoints of a run in descending order of policy steps, including damaged ones."""
    names = [p for p in directory.iterdir() if _is_numbered(p.name)] if directory.is_dir() else []
    yield from sorted(names, key=lambda p: -int(p.name))


def _is_numbered(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 20


def find(directory: Path, policy_steps: int) -> Path | None:
    """Return the checkpoint at `policy_steps`, or None."""
    path = directory / str(policy_steps)
    return path if path.exists() else None


def policy_steps(path: Path) -> int:
    """Return the policy steps of a checkpoint, which are its name."""
    return int(path.name)


def newest_good(directory: Path, with_chunks: bool = False) -> Path | None:
    """Return the newest undamaged checkpoint, or None. For each damaged one that is skipped, a warning is logged.

    Args:
        directory: the run's `checkpoints` folder.
        with_chunks: also verify the chunks, which are needed to resume training, but not to load the policy.

    Returns:
        The checkpoint's directory, or None.

    Raises:
        UserError: a checkpoint may be undamaged but cannot be read (another version, no permission); it is not skipped.
    """
    found = _newest_verified(directory, with_chunks)
    return found and found[0]


def load_newest(directory: Path, with_chunks: bool = False) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """Load the newest undamaged checkpoint; return its path and the result of `load` (see `newest_good`)."""
    found = _newest_verified(directory, with_chunks)
    if found is None:
        return None
    path, files = found
    with in_a_sentence(path):
        return path, *decode(files, path)


def newest_bookkeeping(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Load only the bookkeeping of the newest undamaged checkpoint, without importing torch (see `newest_good`)."""
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
        except OtherVersion as wrong:
            raise UserError(f"checkpoint {path}: {wrong}") from None
        except Unreadable as wrong:
            raise UserError(f"checkpoint {path}: {wrong}; correct that and try again") from None
        except Damage as wrong:
            log.warning("checkpoint %s is damaged and was skipped: %s", path, wrong)
    return None


def resolve(run: RunDirectory, name: str | int = "latest") -> Path:
    """Return the checkpoint that `latest`, `best` or a number of policy steps refers to.

    Raise UserError, with a list of the existing checkpoints, if there is none.
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
        raise UserError(f"{run.path}: no checkpoint {name}; choose latest, best or one of {', '.join(there)}")
    return run.checkpoints / str(name)


def choose(run: RunDirectory) -> Path:
    """Return the best checkpoint of a run by evaluations during training; if there is none, return the latest one."""
    try:
        path = resolve(run, "best")
    except UserError:
        return resolve(run, "latest")
    wrong = damage(path, with_chunks=False)
    if wrong is None:
        return path
    log.warning("best checkpoint %s is damaged (%s); using the latest instead", path, wrong)
    return resolve(run, "latest")


def prune(run: RunDirectory, keep: int | None, saved: Path) -> None:
    """Name a checkpoint `latest`, and remove older ones except the best one and the newest `keep` scheduled ones.

    Checkpoints after `saved` are damaged ones that were skipped on resume. They are ignored, and training will
    overwrite them. If the disk fails, a warning is logged and the run continues.

    Args:
        run: the run.
        keep: number of scheduled checkpoints to keep; None: all.
        saved: the checkpoint that was just written.
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
        log.warning("%s: older checkpoints could not be removed yet: %s", run.checkpoints, error)


def _is_scheduled(path: Path) -> bool:
    """Return True if `checkpoint.keep_last` counts a checkpoint; damaged ones are counted too."""
    try:
        return read_manifest(path).get("scheduled", True) is not False
    except Damage:
        return True


def name_best(run: RunDirectory, path: Path) -> None:
    """Name this checkpoint `best`. Raise DiskFault if the write fails."""
    _write_names(run, _names(run) | {"best": path.name})


def _write_names(run: RunDirectory, names: Mapping[str, str]) -> None:
    write_text(run.names, seal(names).decode())


def _names(run: RunDirectory) -> dict[str, str]:
    """Read which checkpoints are `latest` and `best`; if the file is damaged, warn and use the event log."""
    try:
        names = unseal(run.names.read_bytes())
        if all(_is_numbered(name) for name in names.values()):
            return names
        wrong = "a name is not that of a checkpoint"
    except FileNotFoundError:
        return _best_of_log(run)
    except (OSError, ValueError) as error:
        wrong = str(error)
    log.warning("%s is damaged (%s): the best checkpoint is determined from the event log", run.names, wrong)
    return _best_of_log(run)


def _best_of_log(run: RunDirectory) -> dict[str, str]:
    """Return `best` by the event log: the highest mean return during training, the last one if several are equal."""
    events = history(run.events).evaluations
    best = max(events, key=lambda e: (e["greedy"]["mean"], e["policy_steps"]), default=None)
    path = find(run.checkpoints, best["policy_steps"]) if best else None
    return {"best": path.name} if path else {}

"""Selection of a checkpoint by name (latest, best, policy steps) or age, and removal of old checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
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
    """Yield the paths of all checkpoints of a run, damaged ones included, in descending order of policy steps."""
    names = [p for p in directory.iterdir() if _is_numbered(p.name)] if directory.is_dir() else []
    yield from sorted(names, key=lambda p: -int(p.name))


def _is_numbered(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 20


def find(directory: Path, policy_steps: int) -> Path | None:
    """Return the path of the checkpoint that was written at `policy_steps`, or None if there is none."""
    path = directory / str(policy_steps)
    return path if path.exists() else None


def policy_steps(path: Path) -> int:
    """Return the number of policy steps after which a checkpoint was written; its folder has this number as name."""
    return int(path.name)


def newest_good(directory: Path, with_chunks: bool = False) -> Path | None:
    """Return the newest undamaged checkpoint. Damaged checkpoints are skipped with a warning.

    Args:
        directory: the run's `checkpoints` folder.
        with_chunks: if True, also verify the chunks (`rlcore.store.checkpoint.chunks`), which are needed to resume
            training. They are not needed to load the policy.

    Returns:
        The checkpoint's directory, or None if there is no undamaged checkpoint.

    Raises:
        UserError: a newer checkpoint cannot be read but may be undamaged, because another version of Shepherd wrote it
            or this user has no permission. Such a checkpoint is not skipped.
    """
    found = _newest_verified(directory, with_chunks)
    return found and found[0]


def load_newest(directory: Path, with_chunks: bool = False) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """Load the newest undamaged checkpoint, which is selected as in `newest_good`.

    Args:
        directory: the run's `checkpoints` folder.
        with_chunks: see `newest_good`.

    Returns:
        Path, learning state and bookkeeping state of the checkpoint; None if there is no undamaged checkpoint.
    """
    found = _newest_verified(directory, with_chunks)
    if found is None:
        return None
    path, files = found
    with in_a_sentence(path):
        return path, *decode(files, path)


def newest_bookkeeping(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Load only the bookkeeping state of the newest undamaged checkpoint, without importing torch.

    Args:
        directory: the run's `checkpoints` folder.

    Returns:
        Path and bookkeeping state of the checkpoint; None if there is no undamaged checkpoint.
    """
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
            raise UserError(f"checkpoint {path}: {wrong}; make it readable and try again") from None
        except Damage as wrong:
            log.warning("checkpoint %s is damaged and was skipped: %s", path, wrong)
    return None


def resolve(run: RunDirectory, name: str | int = "latest") -> Path:
    """Return the path of the checkpoint with a name: `latest`, `best` or a number of policy steps.

    Raises UserError, with a list of the existing checkpoints, if there is no checkpoint with this name.
    """
    there = [p.name for p in newest_first(run.checkpoints)]
    if not there:
        raise UserError(f"{run.path}: no checkpoint yet")
    if str(name) == "latest":
        good = newest_good(run.checkpoints)
        if good is None:
            raise UserError(
                f"{run.path}: every checkpoint is damaged ({', '.join(there)}); restore one from a copy, or train again"
            )
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
    """Return the checkpoint with the best evaluation during training, or the latest one if that does not exist."""
    try:
        path = resolve(run, "best")
    except UserError:
        return resolve(run, "latest")
    wrong = damage(path, with_chunks=False)
    if wrong is None:
        return path
    log.warning("best checkpoint %s is damaged (%s); using the latest instead", path, wrong)
    return resolve(run, "latest")


def locate(path: Path, of_run: Callable[[RunDirectory], Path]) -> Path | None:
    """Return the checkpoint at a path.

    Args:
        path: folder of a checkpoint, of a run, or of several checkpoints, such as RUN/checkpoints.
        of_run: function that selects the checkpoint of a run, for example `choose`.

    Returns:
        The path itself if it has a manifest.json, the selected checkpoint of a run, or the newest undamaged checkpoint
        in the folder. None if there is none.
    """
    if (path / "manifest.json").exists():
        return path
    if (run := RunDirectory(path)).config.exists():
        return of_run(run)
    return newest_good(path)


def prune(run: RunDirectory, keep: int | None, saved: Path) -> None:
    """Name a new checkpoint `latest`, and remove older checkpoints that are no longer needed.

    The new checkpoint, the best one and the newest `keep` scheduled ones are kept. If a file cannot be written or
    removed, a warning is logged and training continues.

    Checkpoints with more policy steps than `saved` can exist if they were damaged, so that the run resumed from an
    earlier checkpoint. They are not removed, because training will overwrite them.

    Args:
        run: the run.
        keep: number of scheduled checkpoints to keep (`checkpoint.keep_last`); None: all. A checkpoint is scheduled
            unless it was written because of an evaluation or an interruption.
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
    """Return True if `checkpoint.keep_last` counts a checkpoint.

    It counts all checkpoints, damaged ones included, except those that were written because of an evaluation or an
    interruption.
    """
    try:
        return read_manifest(path).get("scheduled", True) is not False
    except Damage:
        return True


def name_best(run: RunDirectory, path: Path) -> None:
    """Store in names.json that a checkpoint is the best one. Raises DiskFault if the write fails."""
    _write_names(run, _names(run) | {"best": path.name})


def _write_names(run: RunDirectory, names: Mapping[str, str]) -> None:
    write_text(run.names, seal(names).decode())


def _names(run: RunDirectory) -> dict[str, str]:
    """Read names.json: `latest` and `best` -> name of the checkpoint's folder.

    If the file is missing or damaged, the result has only `best`, which is determined from the event log.
    """
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
    """Determine the best checkpoint from the event log: {"best": name}, or {} if there is none.

    It is the checkpoint at the evaluation with the highest mean return during training. If several evaluations have
    this return, the last one counts.
    """
    events = history(run.events).evaluations
    best = max(events, key=lambda e: (e["greedy"]["mean"], e["policy_steps"]), default=None)
    path = find(run.checkpoints, best["policy_steps"]) if best else None
    return {"best": path.name} if path else {}

"""What a result was made from: code, libraries, configuration, data. Every hash is SHA-256 in hexadecimal."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlcore.store.directory import RunDirectory

UNKNOWN = "unknown"
CODE = Path(__file__).resolve().parents[2]


def code_version() -> dict[str, Any]:
    """The code at work: `commit`, `dirty` (tracked files changed), `lock_hash`, `core_hash`; "unknown" if not known."""
    return {"commit": commit(), "dirty": dirty(), "lock_hash": lock_hash(), "core_hash": core_hash()}


def commit() -> str:
    """The checkout's commit, or "unknown" outside git."""
    return _git("rev-parse", "HEAD") if _is_own_repository() else UNKNOWN


def dirty() -> bool | str:
    """Whether tracked files differ from the commit, or "unknown" outside git."""
    if not _is_own_repository():
        return UNKNOWN
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return UNKNOWN if changes == UNKNOWN else changes != ""


def lock_hash() -> str:
    """The hash of requirements.lock, or "unknown" where there is none (an installed wheel)."""
    lock = CODE / "requirements.lock"
    return _file_hash(lock) if lock.is_file() else UNKNOWN


def core_hash() -> str:
    """The hash of `rlcore`, the code that decides what is learned: names and contents of its modules."""
    return _tree_hash(CODE / "rlcore", sorted((CODE / "rlcore").rglob("*.py")))


def dataset_digest(run: RunDirectory) -> str:
    """The hash of what `collect` wrote: names and contents of the dataset's files; "none" where there is no dataset."""
    files = sorted(path for path in run.dataset.rglob("*") if path.is_file()) if run.dataset.is_dir() else []
    return _tree_hash(run.dataset, files) if files else "none"


def lineage(run: RunDirectory) -> dict[str, Any]:
    """What a model of a run was made from: run_id, config_hash, commit, dirty, lock_hash, dataset_digest.

    Code and libraries are those the run was created with, not those of the process that asks.
    """
    from rlcore.store.run_config import config_hash, config_of  # torch, for which the mirror's process need not wait

    identity = run.read_identity() if run.identity.exists() else {}
    code = {key: identity.get(key, UNKNOWN) for key in ("commit", "dirty", "lock_hash")}
    return {
        "run_id": identity.get("run_id", UNKNOWN),
        "config_hash": config_hash(config_of(run)),
        **code,
        "dataset_digest": dataset_digest(run),
    }


def _file_hash(path: Path) -> str:
    """The hash of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _tree_hash(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()} {_file_hash(path)}\n".encode())
    return digest.hexdigest()


def _is_own_repository() -> bool:
    # An installed wheel may lie inside somebody else's repository (a .venv): that commit says nothing about us.
    top = _git("rev-parse", "--show-toplevel")
    return top != UNKNOWN and Path(top).resolve() == CODE


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CODE), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return answer.stdout.strip()

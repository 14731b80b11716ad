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
    changes = _git("status", "--porcelain", "--untracked-files=no") if _is_own_repository() else UNKNOWN
    lock = CODE / "requirements.lock"  # an installed wheel has none
    return {
        "commit": commit(),
        "dirty": UNKNOWN if changes == UNKNOWN else changes != "",
        "lock_hash": _file_hash(lock) if lock.is_file() else UNKNOWN,
        "core_hash": core_hash(),
    }


def commit() -> str:
    """The checkout's commit, or "unknown" outside git."""
    return _git("rev-parse", "HEAD") if _is_own_repository() else UNKNOWN


def core_hash() -> str:
    """The hash of `rlcore`, the code that decides what is learned: names and contents of its modules."""
    return _tree_hash(CODE / "rlcore", sorted((CODE / "rlcore").rglob("*.py")))


def lineage(run: RunDirectory) -> dict[str, Any]:
    """What a model of a run was made from: run_id, config_hash, commit, dirty, lock_hash, plugins, dataset_digest.

    Code, libraries and plugins are those the run was created with, not those of the process that asks.
    """
    from rlcore.store.run_config import config_hash, config_of  # torch, for which the mirror's process need not wait

    identity, dataset = run.read_identity(), sorted(path for path in run.dataset.rglob("*") if path.is_file())
    return {
        "run_id": identity["run_id"],
        "config_hash": config_hash(config_of(run)),
        **{key: identity.get(key, UNKNOWN) for key in ("commit", "dirty", "lock_hash")},
        **{f"plugin.{module}": digest for module, digest in identity.get("plugins", {}).items()},
        "dataset_digest": _tree_hash(run.dataset, dataset) if dataset else "none",
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

"""Lineage of a result: the code, libraries, configuration and data that produced it.

Every hash is a SHA-256 hash in hexadecimal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlcore.config.learning_half import EXTENDS, config_hash, half_hash
from rlcore.config.run import RunConfig
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history

UNKNOWN = "unknown"
# Inputs of a run: name of the entry in run.json -> config key.
INPUTS = {
    "init_from": "init_from",
    "resume_from": "checkpoint.resume_from",
    "extend_from": EXTENDS,
    "load_from": "buffer.load_from",
}
CODE = Path(__file__).resolve().parents[2]


def code_version() -> dict[str, Any]:
    """Return `commit`, `dirty`, `lock_hash` and `core_hash` of the running code.

    `dirty` is True if tracked files have uncommitted changes. A value that cannot be determined is "unknown".
    """
    changes = _git("status", "--porcelain", "--untracked-files=no") if _is_own_repository() else UNKNOWN
    lock = CODE / "requirements.lock"  # an installed wheel has none
    return {
        "commit": commit(),
        "dirty": UNKNOWN if changes == UNKNOWN else changes != "",
        "lock_hash": _file_hash(lock) if lock.is_file() else UNKNOWN,
        "core_hash": core_hash(),
    }


def code_diff() -> bytes:
    """Return the uncommitted changes of tracked files as a patch for `git apply`; empty if there are none."""
    return _run_git("diff", "--binary", "HEAD") or b"" if _is_own_repository() else b""


def hash_of_diff(changes: bytes) -> str | None:
    """Return the hash of a patch, None if it is empty."""
    return hashlib.sha256(changes).hexdigest() if changes else None


def commit() -> str:
    """Return the commit of the checkout, or "unknown" outside git."""
    return _git("rev-parse", "HEAD") if _is_own_repository() else UNKNOWN


def core_hash() -> str:
    """Return the hash of the package `rlcore`, which contains the code that affects learning.

    The hash covers the names and contents of the modules. A module is read again only if its inode, size or
    modification time has changed.
    """
    return _tree_hash(CODE / "rlcore", sorted((CODE / "rlcore").rglob("*.py")), _code_hash)


def lineage(run: RunDirectory) -> dict[str, Any]:
    """Return the lineage of a model: run_id, config_hash, commit, dirty, lock_hash, host, plugins, dataset_digest.

    Code, libraries and plugins are those of the process that created the run, not those of the calling process.
    """
    identity = run.read_identity()
    return {
        "run_id": identity["run_id"],
        "config_hash": config_hash(config_of(run)),
        **{key: identity.get(key, UNKNOWN) for key in ("commit", "dirty", "lock_hash", "host")},
        **{f"plugin.{module}": digest for module, digest in identity.get("plugins", {}).items()},
        "dataset_digest": dataset_digest(run),
    }


def whole_lineage(run: RunDirectory, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete lineage of a run. Together with config.yaml it is sufficient to reproduce the run.

    The argument `fingerprint` is that of the newest checkpoint, or {} if there is no checkpoint. The lineage contains:

    - all entries of run.json, such as code, host, seed and initial weights
    - `learned` and `config_hash`: the config keys that affect training, with their values, and the hash of these keys
    - `machine`: device, threads, versions and plugins; `compile`: how gradient steps are computed
    - `dataset_digest`: hash of the dataset
    - `checkpoints`: policy steps -> {digest, tensors, env_steps}
    - `evaluations`: policy steps, or "last" for the final evaluation -> mean returns
    """
    log = history(run.events)
    learned = fingerprint.get("learning", {}).get("config")  # config.yaml may have been edited since
    return {
        **run.read_identity(),
        **({"learned": learned, "config_hash": half_hash(learned)} if learned else {}),
        "machine": fingerprint.get("machine", {}),
        "compile": fingerprint.get("learning", {}).get("compile"),
        "dataset_digest": dataset_digest(run),
        "checkpoints": {
            str(event["policy_steps"]): {
                "digest": event["digest"],
                "tensors": event.get("tensors", ""),
                "env_steps": event.get("env_steps"),
            }
            for event in log.of("checkpoint")
            if "digest" in event
        },
        "evaluations": {
            ("last" if event["final"] else str(event["policy_steps"])): {
                mode: event[mode]["mean"] for mode in ("greedy", "stochastic") if event.get(mode)
            }
            for event in log.of("evaluation")
        },
    }


def inputs_as_given(run: RunDirectory) -> dict[str, str]:
    """Return the values of the keys of a run's inputs as the user gave them, such as `models:/NAME@ALIAS`.

    config.yaml has the folders in their place. The result maps names in `INPUTS` to values.
    """
    identity = run.read_identity()
    return {name: identity[name]["given"] for name in INPUTS if "given" in identity.get(name, {})}


def place_inputs(
    config: RunConfig, values: Mapping[str, Any], inputs: Mapping[str, str]
) -> tuple[RunConfig, dict[str, Any]]:
    """Set the keys of inputs in a config, and in the same config as nested dicts.

    `inputs` maps names in `INPUTS` to the new values of their keys. Other keys do not change.
    """
    values = dict(values)
    for name, value in inputs.items():
        group, _, key = INPUTS[name].rpartition(".")
        part: Any = getattr(config, group) if group else config
        part = dataclasses.replace(part, **{key: value})
        config = dataclasses.replace(config, **{group: part}) if group else part
        values |= {group: {**values[group], key: value}} if group else {key: value}
    return config, values


def dataset_digest(run: RunDirectory) -> str:
    """Return the hash of a run's dataset, or "none" if the run has no dataset."""
    files = sorted(path for path in run.dataset.rglob("*") if path.is_file())
    return _tree_hash(run.dataset, files) if files else "none"


def _file_hash(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _code_hash(path: Path) -> str:
    status = path.stat()
    state = status.st_ino, status.st_size, status.st_mtime_ns
    if _code_hashes.get(path, (None, ""))[0] != state:
        _code_hashes[path] = state, _file_hash(path)
    return _code_hashes[path][1]


_code_hashes: dict[Path, tuple[tuple[int, int, int], str]] = {}


def _tree_hash(root: Path, files: Iterable[Path], hash_file: Callable[[Path], str] = _file_hash) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()} {hash_file(path)}\n".encode())
    return digest.hexdigest()


_repositories: set[Path] = set()  # checkouts that git has confirmed; failures, such as a timeout, are not cached


def _is_own_repository() -> bool:
    # An installed wheel may be inside another repository (in a .venv); the commit of that repository is not ours.
    if CODE not in _repositories:
        top = _git("rev-parse", "--show-toplevel")
        if top == UNKNOWN or Path(top).resolve() != CODE:
            return False
        _repositories.add(CODE)
    return True


def _git(*arguments: str) -> str:
    answer = _run_git(*arguments)
    return UNKNOWN if answer is None else answer.decode(errors="replace").strip()


def _run_git(*arguments: str) -> bytes | None:
    command = ["git", "-C", str(CODE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None

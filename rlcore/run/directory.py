"""The run directory: where everything of one run lies. The truth; everything else mirrors it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import UserError


class RunDirectory:
    """Names of the files of one run, under `path`.

        config.yaml, config_overrides.txt, run.json (run id), env_card.json, events.jsonl, summary.json, run.log, lock
        dataset/  checkpoints/<env_steps>/  evaluations/<env_steps>.json  media/

    Args:
        path: the run's folder; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.overrides = self.path / "config_overrides.txt"
        self.identity = self.path / "run.json"
        self.card = self.path / "env_card.json"
        self.events = self.path / "events.jsonl"
        self.dataset = self.path / "dataset"
        self.checkpoints = self.path / "checkpoints"
        self.names = self.checkpoints / "names.json"
        self.evaluations = self.path / "evaluations"
        self.media = self.path / "media"
        self.curve = self.media / "learning_curve.png"
        self.summary = self.path / "summary.json"
        self.log = self.path / "run.log"
        self.lock = self.path / "lock"

    def read_summary(self) -> dict[str, Any]:
        """The summary, or an empty dict before the run has ended."""
        return json.loads(self.summary.read_text()) if self.summary.exists() else {}

    def read_identity(self) -> dict[str, Any]:
        """What was fixed when the run was created: run_id, created, commit, dirty, lock_hash."""
        return json.loads(self.identity.read_text())

    @staticmethod
    def existing(path: str | Path) -> RunDirectory:
        """The run directory at `path`.

        Args:
            path: the run's folder.

        Returns:
            The directory; it holds a config.

        Raises:
            UserError: there is no run there.
        """
        run = RunDirectory(path)
        if not run.config.exists():
            raise UserError(f"{path}: no run here (no config.yaml); give the folder that `shepherd train` printed")
        return run

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run's only writer's place; the operating system frees it when the process ends in any way.

        Raises:
            UserError: another process holds it; names its pid and host.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.lock, "a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                owner = handle.read().strip() or "another process"
                raise UserError(
                    f"{self.path}: {owner} is writing this run; wait for it or choose another run_dir"
                ) from None
            handle.truncate(0)
            handle.write(f"pid {os.getpid()} on {socket.gethostname()}")
            handle.flush()
            yield


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)

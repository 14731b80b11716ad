"""The run directory: where everything of one run lies. The truth; everything else mirrors it.

A run may hold what others should not read: its config, its log, the code that made it. Its folder is therefore made so
that nobody but the owner can enter; the modes of the files inside do not matter. `chmod` on the folder shares the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import DiskFault, UserError
from rlcore.store.run_files import read_mapping
from rlcore.system.durable import make_directory, make_private, sync_directory, write_synced

SHOWN = 3  # runs named where a folder of many was given

ATTEMPTS, PAUSE = 20, 0.05  # at a lock: who only looks holds it for a moment, one that was killed until it has ended
log = logging.getLogger(__name__)


class RunDirectory:
    """Names of the files of one run, under `path`.

        config.yaml, config_overrides.txt, run.json (run id), env_card.json, events.jsonl, summary.json, lineage.json
        run.log, lock; code.diff, where the code was not that of its commit
        dataset/  checkpoints/<policy_steps>/  evaluations/<policy_steps>.json  media/
        set_aside/<run id>/: runs that this folder held before

    Args:
        path: the run's folder; need not exist yet. It is made absolute, because an environment may call `os.chdir`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
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
        self.set_aside = self.path / "set_aside"
        self.curve = self.media / "learning_curve.png"
        self.inputs = self.media / "inputs.png"
        self.summary = self.path / "summary.json"
        self.lineage = self.path / "lineage.json"
        self.code_diff = self.path / "code.diff"
        self.log = self.path / "run.log"
        self.lock = self.path / "lock"
        self.driver = self.path / ".driver"

    def read_config(self) -> dict[str, Any]:
        """config.yaml as plain values; `rlcore.run_config.build_config` makes the checked config of them.

        A UserError where it is damaged, as for the other files that are read here.
        """
        fix = "restore it from a copy, or move the run's folder away"
        return read_mapping(self.config, fix, ("algo.name", "env.id"))

    @property
    def name(self) -> str:
        """The run's one name, for people and other programs: `run_name` where its folder is called by that.

        Else its folder's, and of one of several seeds (`seed_3`) the two folders above it: sweep, trial, seed.
        """
        chosen = Path(self.read_config()["run_name"] or self.path.name).parts
        place = self.path.absolute().parts
        depth = len(chosen) if place[-len(chosen) :] == chosen else 3 if place[-1].startswith("seed_") else 1
        return "/".join(place[-depth:])

    def read_card(self) -> dict[str, Any]:
        """The environment card, as `rlcore.envs.card.environment_card` gives it."""
        fix = f"`shepherd stage make-env {self.path}` measures the environment again"
        return read_mapping(self.card, fix, ("tier",))

    def read_baseline(self) -> dict[str, Any] | None:
        """Result of random actions while the dataset was collected, or None before that; of a damaged one too."""
        if not (self.dataset / "manifest.json").exists():
            return None
        try:
            return self.read_dataset_manifest()["result"]
        except UserError as damaged:
            log.warning("%s", damaged)
            return None

    def read_dataset_manifest(self) -> dict[str, Any]:
        """The manifest of the dataset that `collect` wrote."""
        fix = f"`shepherd stage collect {self.path}` collects it again"
        return read_mapping(self.dataset / "manifest.json", fix, ("result.mean", "result.episodes"))

    def read_summary(self) -> dict[str, Any]:
        """The summary, or an empty dict before the run has ended; a damaged one is made again from the event log."""
        try:
            told = read_mapping(self.summary, "it is made again") if self.summary.exists() else {}
        except UserError as damaged:
            log.warning("%s", damaged)
            told = {}
        # Earlier versions have env steps, a few in a hundred less, alone.
        return {key.replace("env_steps", "policy_steps"): value for key, value in told.items()} | told

    def read_identity(self) -> dict[str, Any]:
        """Facts fixed when the run was created: run_id, created, commit, dirty, lock_hash, plugins."""
        return read_mapping(self.identity, "restore it from a copy, or move the run's folder away", ("run_id",))

    def read_overrides(self) -> list[str]:
        """The overrides that were typed, one a line; none where they are not there."""
        try:
            return self.overrides.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise UserError(
                f"{self.overrides}: cannot be read ({reason}); remove it, training does not need it"
            ) from None

    @staticmethod
    def existing(path: str | Path) -> RunDirectory:
        """The run directory at `path`; `UserError` where no run is."""
        run = RunDirectory(path)
        if not os.path.lexists(run.config):
            inside = [str(each.path) for each in itertools.islice(RunDirectory.below(Path(path)), SHOWN + 1)]
            if inside:
                places = f"{', '.join(inside[:SHOWN])}{', …' if len(inside) > SHOWN else ''}"
                raise UserError(f"{path}: a folder of runs, not a run; name one of those inside: {places}")
            raise UserError(f"{path}: no run here (no config.yaml); give the folder that `shepherd train` printed")
        return run

    @staticmethod
    def of_checkpoint(path: Path) -> RunDirectory:
        """The run directory that a checkpoint lies in; `UserError` if it lies elsewhere."""
        run = RunDirectory(path.parents[1])
        if path.parent != run.checkpoints or not run.config.exists():
            raise UserError(
                f"{path}: a checkpoint outside of its run, whose config it needs; move it back to RUN/checkpoints/"
                f"{path.name}, or give the folder of a run"
            )
        return run

    @staticmethod
    def below(folder: Path) -> Iterator[RunDirectory]:
        """The run directories in a folder and beneath it, in order; what lies inside one is its own affair."""
        for place, folders, files in os.walk(folder):
            folders.sort()
            if "config.yaml" in files and "run.json" in files:
                folders.clear()
                yield RunDirectory(place)

    @staticmethod
    def new(path: str | Path) -> RunDirectory:
        """The run directory to be made at `path`; `UserError` where a run is there already."""
        run = RunDirectory(path)
        try:
            there = run.config.exists()
        except OSError as error:  # a name that is too long, a folder that is not ours to read
            raise UserError(f"run_dir={path}: cannot be read ({error.strerror}); choose another run_dir") from None
        if there:
            raise UserError(
                f"run_dir={path}: a run is there already; continue it with `shepherd resume {path}` "
                "or choose another run_dir"
            )
        return run

    def make(self, overrides: str, identity: Mapping[str, Any], config: str, code_diff: bytes = b"") -> None:
        """Make the folder with these files, config.yaml last: with it the run is there."""
        make_private(self.path)
        with self.writing():
            RunDirectory.new(self.path)  # another process may have been quicker
            make_directory(self.media)
            write_text(self.overrides, overrides)
            write_json(self.identity, identity)
            if code_diff:
                write_bytes(self.code_diff, code_diff)
            write_text(self.config, config)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the run's only writer inside; `UserError` where another process is. One that ends is none any more."""
        with self._holding(self.lock):
            yield

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Be the process that leads the run from stage to stage (its trainer writes); `UserError` where another is."""
        self.refuse_second_writer()  # before a lock file is made in a run that is somebody else's
        with self._holding(self.driver):
            yield

    @contextmanager
    def _holding(self, path: Path) -> Iterator[None]:
        descriptor = self._take_lock(path)
        try:
            yield
        finally:
            os.close(descriptor)

    def refuse_second_writer(self) -> None:
        """Raise the `UserError` of `writing` if another process leads or writes this run; changes nothing."""
        for path in (self.driver, self.lock):
            if path.exists():
                with contextlib.suppress(PermissionError), open(path, "rb") as handle:
                    self._lock(handle.fileno())

    def is_taken(self) -> bool:
        """Tell whether some process leads or writes this run just now; changes nothing, and does not wait."""
        for path in (self.driver, self.lock):
            with contextlib.suppress(FileNotFoundError, PermissionError), open(path, "rb") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
                except OSError:
                    return True
        return False

    def _take_lock(self, path: Path) -> int:
        """The descriptor that holds the lock; the file says who holds it."""
        try:
            make_private(self.path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another run_dir") from error
        try:
            self._lock(descriptor)
            # For the sentence of whoever comes second; on a full disk that one has to do without the name.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock(self, descriptor: int) -> None:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if attempt < ATTEMPTS - 1:
                    time.sleep(PAUSE)
            except OSError as error:
                raise UserError(f"{self.lock}: this file system cannot lock files ({error.strerror})") from error
        owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise UserError(f"{self.path}: {owner} is writing this run; wait for it or choose another run_dir")


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """`write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file durably, so that a reader sees the old one or the new one, never a part; makes its folder.

    On `DiskFault` the old file is there unless the very last step, making the name durable, failed.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        make_directory(path.parent)
        _discard_leftovers(path)
        write_synced(temporary, data)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskFault(f"{path} could not be written ({error.strerror or error})") from error


def _discard_leftovers(path: Path) -> None:
    """Remove what writers of this file left that were killed; one that lives is still writing."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        pid = leftover.name.rpartition("-")[2]
        if not (pid.isdecimal() and _lives(int(pid))):
            leftover.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # somebody else's
    return True

"""Run directory: the folder with all files of a run. Experiment trackers such as MLflow receive copies of them.

Config, log and code of a run can be confidential. Therefore only the owner has access to the folder and to the files in
it. To share a run, change the permissions of the folder with `chmod`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import DiskFault, UserError
from rlcore.spec import EnvSpec
from rlcore.store.run_files import describe_other_format, read_mapping, read_record
from rlcore.system.durable import make_directory, make_private, sync_directory, write_synced

FORMAT = 2  # of a run directory, stored in run.json; Shepherd 0.1.0 stored none
SHOWN = 3  # number of runs listed in an error message about a folder of runs

# Number of attempts to lock, and seconds between them. Several are needed, because a check of another process has the
# lock for a moment, and a killed process has it until it has ended.
ATTEMPTS, PAUSE = 20, 0.05
log = logging.getLogger(__name__)


class PathInRun:
    """Attribute of `RunDirectory` with the path of a file or folder of the run.

    The path is joined when it is read first. A list of 1,000 runs needs 5 of the 19 paths, and joining all of them took
    a tenth of its time.

    Args:
        name: path relative to the run's folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __set_name__(self, owner: type[RunDirectory], attribute: str) -> None:
        """Store the name of the attribute, under which the path is cached in each run directory."""
        self._attribute = attribute

    def __get__(self, run: RunDirectory, owner: type[RunDirectory]) -> Path:
        """Return the absolute path in a run directory."""
        path = run.__dict__[self._attribute] = run.path / self._name
        return path


class RunDirectory:
    """Paths of the files of a run, methods that read the small files, and the locks of the run.

        config.yaml, config_overrides.txt, run.json (run id), env_card.json, events.jsonl, summary.json, lineage.json
        run.log, lock; code.diff, if the code had uncommitted changes
        dataset/  checkpoints/<policy_steps>/  evaluations/<policy_steps>.json  media/
        set_aside/<run id>/: files of earlier runs in this folder

    All methods that read a file raise UserError if the file is damaged, unless their docstring says otherwise.

    Args:
        path: the run's folder, which need not exist. A relative path is converted to an absolute one at once, because
            an environment can change the working directory later.
    """  # noqa: DOC601, DOC603 - the paths are class attributes, and their values describe them

    config = PathInRun("config.yaml")
    overrides = PathInRun("config_overrides.txt")
    identity = PathInRun("run.json")
    card = PathInRun("env_card.json")
    events = PathInRun("events.jsonl")
    dataset = PathInRun("dataset")
    checkpoints = PathInRun("checkpoints")
    names = PathInRun("checkpoints/names.json")
    evaluations = PathInRun("evaluations")
    media = PathInRun("media")
    set_aside = PathInRun("set_aside")
    curve = PathInRun("media/learning_curve.png")
    inputs = PathInRun("media/inputs.png")
    summary = PathInRun("summary.json")
    lineage = PathInRun("lineage.json")
    code_diff = PathInRun("code.diff")
    log = PathInRun("run.log")
    lock = PathInRun("lock")
    driver = PathInRun(".driver")

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._made: list[Path] = []  # folders that `make` created, the run's own first

    def read_config(self) -> dict[str, Any]:
        """Read config.yaml as nested dicts, without validation (see `rlcore.store.config_file.config_of`)."""
        fix = "restore it from a copy, or move the run's folder away"
        return read_mapping(self.config, fix, ("algo.name", "env.id"))

    @property
    def name(self) -> str:
        """Name of the run in tables and plots.

        It is the config key `run_name` if the path of the run's folder ends in it. Otherwise, for example after the
        folder was renamed, it is the name of the folder. For the run of one seed in a sweep, it is the last three
        parts of the path: sweep/trial/seed_N.
        """
        chosen = Path(self.read_config()["run_name"] or self.path.name).parts
        place = self.path.absolute().parts
        depth = len(chosen) if place[-len(chosen) :] == chosen else 3 if place[-1].startswith("seed_") else 1
        return "/".join(place[-depth:])

    def read_card(self) -> dict[str, Any]:
        """Read env_card.json: properties of the environment, measured by the stage `make-env`."""
        fix = f"`shepherd stage make-env {self.path}` measures the environment again"
        card = read_record(self.card, fix, ("tier", "spec"))
        try:
            EnvSpec.from_json(card["spec"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{self.card}: damaged, spec does not describe an environment; {fix}") from None
        return card

    def read_baseline(self) -> dict[str, Any] | None:
        """Read the return of a random policy, measured by the stage `collect`.

        Returns:
            The statistics (mean, number of episodes and others); None if the file is missing or damaged.
        """
        if not (self.dataset / "manifest.json").exists():
            return None
        try:
            return self.read_dataset_manifest()["result"]
        except UserError as damaged:
            log.warning("%s", damaged)
            return None

    def read_dataset_manifest(self) -> dict[str, Any]:
        """Read manifest.json of the run's dataset, which the stage `collect` wrote."""
        fix = f"`shepherd stage collect {self.path}` collects it again"
        return read_record(self.dataset / "manifest.json", fix, ("result.mean", "result.episodes"))

    def read_summary(self) -> dict[str, Any]:
        """Read summary.json, the results of the run.

        Returns:
            The results; {} if the file does not exist because the run has not ended, or if it is damaged. A damaged
            summary can be recomputed from the event log.
        """
        try:
            return read_record(self.summary, "it is recomputed from the event log") if self.summary.exists() else {}
        except UserError as damaged:
            log.warning("%s", damaged)
            return {}

    def read_identity(self) -> dict[str, Any]:
        """Read run.json, which was written when the run was created, and check the format of the run directory.

        Returns:
            Keys: format, run_id, created (time), commit and dirty (state of the git repository), lock_hash (of
            requirements.lock), plugins.

        Raises:
            UserError: the file is damaged, or an incompatible version of Shepherd created the run.
        """
        found = read_record(self.identity, "restore it from a copy, or move the run's folder away", ("run_id",))
        if found.get("format") != FORMAT:
            raise UserError(f"{self.path}: this run {describe_other_format(found.get('format'), FORMAT)}")
        return found

    def read_overrides(self) -> list[str]:
        """Read the overrides (KEY=VALUE) in the command that started the run; [] if the file does not exist."""
        try:
            return self.overrides.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise UserError(
                f"{self.overrides}: cannot be read ({reason}); remove this file, which training does not need"
            ) from None

    @staticmethod
    def existing(path: str | Path) -> RunDirectory:
        """Return the directory of an existing run.

        Args:
            path: the run's folder.

        Returns:
            The run directory.

        Raises:
            UserError: the folder does not contain a run, or an incompatible version of Shepherd created the run.
        """
        run = RunDirectory(path)
        if not os.path.lexists(run.config):
            inside = [str(each.path) for each in itertools.islice(RunDirectory.below(Path(path)), SHOWN + 1)]
            if inside:
                places = f"{', '.join(inside[:SHOWN])}{', …' if len(inside) > SHOWN else ''}"
                raise UserError(f"{path}: this folder contains runs, but is not a run; give one of its runs: {places}")
            raise UserError(f"{path}: no run here (no config.yaml); give the folder that `shepherd train` printed")
        if run.identity.exists():
            run.read_identity()
        return run

    @staticmethod
    def of_checkpoint(path: Path) -> RunDirectory:
        """Return the directory of the run to which a checkpoint belongs.

        Args:
            path: the checkpoint's folder, RUN/checkpoints/<policy_steps>.

        Returns:
            The run directory.

        Raises:
            UserError: the checkpoint is not in the folder of a run.
        """
        run = RunDirectory(path.parents[1])
        if path.parent != run.checkpoints or not run.config.exists():
            raise UserError(
                f"{path}: this checkpoint is outside of its run, but it needs the config of the run; move it back to "
                f"RUN/checkpoints/{path.name}, or give the folder of a run"
            )
        return run

    @staticmethod
    def below(folder: Path) -> Iterator[RunDirectory]:
        """Yield all runs in a folder and its subfolders, sorted by path; subfolders of a run are not searched."""
        for place, folders, files in os.walk(folder):
            folders.sort()
            if "config.yaml" in files and "run.json" in files:
                folders.clear()
                yield RunDirectory(place)

    @staticmethod
    def new(path: str | Path) -> RunDirectory:
        """Return the directory of a new run, without creating it. Raises UserError if `path` already contains a run."""
        run = RunDirectory(path)
        try:
            there = run.config.exists()
        except OSError as error:  # the name is too long, or a folder is not readable
            raise UserError(f"run_dir={path}: cannot be read ({error.strerror}); choose another run_dir") from None
        if there:
            raise UserError(
                f"run_dir={path}: this folder already contains a run; resume it with `shepherd resume {path}` "
                "or choose another run_dir"
            )
        return run

    def make(self, overrides: str, identity: Mapping[str, Any], config: str, code_diff: bytes = b"") -> None:
        """Create the run's folder and its first files.

        config.yaml is written last, because a folder counts as a run if it contains this file.

        Args:
            overrides: overrides to write to config_overrides.txt, each in its own line.
            identity: content of run.json, without the format (see `read_identity`).
            config: content of config.yaml.
            code_diff: content of code.diff; empty if the code had no uncommitted changes.
        """
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_private(self.path)
        with self.writing():
            RunDirectory.new(self.path)  # check again, now with the lock
            make_directory(self.media)
            write_text(self.overrides, overrides)
            write_json(self.identity, {"format": FORMAT, **identity})
            if code_diff:
                write_bytes(self.code_diff, code_diff)
            write_text(self.config, config)

    @contextmanager
    def removed_if_refused(self) -> Iterator[None]:
        """Context manager that removes the folder of a new run if the run cannot start because of a user's mistake.

        The folder is removed if a UserError is raised before the environment card has been written. Only folders that
        this object has created (`make`) are removed, and only if no other process uses the run.
        """
        try:
            yield
        except UserError:
            if self._made and not self.card.exists() and not self.is_taken():
                shutil.rmtree(self.path, ignore_errors=True)
                parents, self._made = self._made[1:], []
                for folder in parents:
                    with contextlib.suppress(OSError):  # another command uses it by now
                        folder.rmdir()
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context manager that holds the lock of the process that writes the run's files: the trainer.

        The lock is released when the process ends, even if it is killed. Raises UserError if another process has it.
        """
        with self._holding(self.lock):
            yield

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Context manager that holds the lock of the process that executes the stages of a run, such as training.

        The trainer is a child process of it and takes a second lock (`writing`). Raises UserError if another process
        has one of the two locks.
        """
        self.refuse_second_writer()  # first, so that no lock file is created in the run of another process
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
        """Raise UserError if another process holds a lock of this run (`driving` or `writing`); take no lock."""
        for path in (self.driver, self.lock):
            if path.is_dir():
                raise UserError(f"{path}: is a folder, but must be a file; move the folder away")
            if path.exists():
                with contextlib.suppress(PermissionError), open(path, "rb") as handle:
                    self._lock(handle.fileno())

    def is_taken(self) -> bool:
        """Return True if a process holds a lock of this run (`driving` or `writing`), without waiting for it."""
        for path in (self.driver, self.lock):
            missing = (FileNotFoundError, PermissionError, IsADirectoryError)
            with contextlib.suppress(*missing), open(path, "rb") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that checks do not conflict
                except OSError:
                    return True
        return False

    def _take_lock(self, path: Path) -> int:
        """Lock a file, write process id and host into it for error messages, and return the file descriptor."""
        try:
            make_private(self.path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}); choose another run_dir") from error
        try:
            self._lock(descriptor)
            # Error messages of other processes contain the owner. It cannot be written if the disk is full.
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
                raise UserError(
                    f"{self.lock}: this file system cannot lock files ({error.strerror}); choose another run_dir"
                ) from error
        owner = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise UserError(f"{self.path}: {owner} is writing this run; wait for it or choose another run_dir")


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file, durably and atomically (see `write_bytes`)."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, durably and atomically (see `write_bytes`)."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file durably and atomically, so that readers see either the old or the new content.

    A missing folder is created.

    Args:
        path: the file.
        data: its new content.

    Raises:
        UserError: a folder with this name exists.
        DiskFault: the write failed. The old file is unchanged, except if only the last step failed, which makes the new
            file name durable (fsync of the folder).
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
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path}: is a folder, but must be a file; move the folder away") from None
        raise DiskFault(f"{path} could not be written ({error.strerror or error})") from error


def _discard_leftovers(path: Path) -> None:
    """Remove temporary files of `write_bytes` for this path whose processes were killed."""
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
        return True  # a process of another user
    return True

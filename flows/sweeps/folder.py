"""Folders of a sweep, and the database that contains its Optuna study.

The plan and the study are in `sweeps_folder()`, runs and reports under `log_root`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flows.prefect_repairs.leases import is_held_elsewhere
from flows.process.locks import hold, is_taken
from flows.report.command_lines import sweep_resume_command
from flows.settings import DATABASE, database_url, sweeps_folder
from flows.sweeps.plan import NAME, SweepConfig, SweepPlan, TrialIntervals
from flows.sweeps.space import Dimension
from rlcore.config.build import build
from rlcore.config.values import nearest
from rlcore.errors import RunError, UserError, first_line
from rlcore.store.directory import write_json, write_text
from rlcore.store.run_files import describe_other_format, read_mapping
from rlcore.system.durable import make_private
from rlcore.system.secrets import redact

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

STORAGE = "SHEPHERD_SWEEP_STORAGE"
FORMAT = 2  # of sweep.json; Shepherd 0.1.0 stored none


class SweepFolder:
    """Paths of the files of one sweep.

        <sweeps folder>/<name>/         sweep.json (the plan), study.db, lock, workers.log, confirmed.json
        <log_root>/sweeps/<name>/       sweep.json, report.html, pictures/, conf/exp/, trial_0000/seed_<seed>/,
                                        winner_0000/, default/, confirmation/

    Args:
        name: name of the sweep.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = sweeps_folder() / name
        self.plan_file = self.path / "sweep.json"
        self.confirmed = self.path / "confirmed.json"
        self.workers_log = self.path / "workers.log"
        self.lease = self.path / "lease"

    @staticmethod
    def existing(name: str) -> SweepFolder:
        """Return the sweep of this name, or whose runs are in this folder; raise UserError if there is none."""
        if (Path(name) / "sweep.json").is_file():
            name = Path(name).resolve().name
        folder = SweepFolder(name)
        if not NAME.fullmatch(name) or not folder.plan_file.exists():
            known = sorted(path.parent.name for path in sweeps_folder().glob("*/sweep.json"))
            there = nearest(name, known) or f"; existing sweeps: {', '.join(known) or 'none'}"
            raise UserError(f"{name}: no such sweep in {sweeps_folder()}{there}")
        return folder

    def write(self, plan: SweepPlan, runs: Path) -> None:
        """Store the plan of the sweep and the path of its runs in sweep.json.

        Another copy of sweep.json is stored in the folder `runs`, so that other machines can find the sweep there.
        """
        for folder in (self.path, runs):
            make_private(folder)
        identity = self.id if self.plan_file.exists() else secrets.token_hex(8)
        self.storage(plan)  # raises if the storage has changed
        noted: dict[str, Any] = {"copies": self.copies} if self.copies else {}
        noted |= {"format": FORMAT, "id": identity, "runs": str(runs), "storage": redact(self._choose_storage(plan))}
        noted |= dataclasses.asdict(plan)
        for place in (self.plan_file, runs / "sweep.json"):
            write_json(place, noted)

    def adopt(self, runs: Path) -> bool:
        """Return True if a sweep of this name exists on this machine, or in the folder `runs` that machines share.

        In the second case, the plan is copied from `runs` to this machine.
        """
        if not self.plan_file.exists() and (runs / "sweep.json").exists():
            make_private(self.path)
            write_text(self.plan_file, (runs / "sweep.json").read_text())
        return self.plan_file.exists()

    def read(self) -> SweepPlan:
        """Return the plan of the sweep, read from sweep.json; raise UserError if the file is damaged."""
        noted = self._read_note()
        try:
            config = build(SweepConfig, noted["config"], "sweep.")
            pace = TrialIntervals(**noted["pace"]) if noted["pace"] else None
            space = [_dimension(values) for values in noted["space"]]
            return SweepPlan(config, noted["base"], space, pace, noted["default"], noted["outside"])
        except UserError as error:
            raise UserError(f"{self.plan_file}: {error}; {self._fix}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self.plan_file}: damaged, not the plan of a sweep ({type(error).__name__}); {self._fix}"
            ) from None

    @property
    def _fix(self) -> str:
        return f"copy it from <log_root>/sweeps/{self.name}, or move {self.path} away"

    @property
    def id(self) -> str:
        """Random identifier that distinguishes the sweep from an earlier, deleted sweep of the same name."""
        return self._read_note()["id"]

    @property
    def runs(self) -> Path:
        """Folder that contains the runs of the sweep."""
        return Path(self._read_note()["runs"])

    def trial(self, number: int) -> Path:
        """Return the folder that contains the runs of a trial, one per seed."""
        return self.runs / f"trial_{number:04d}"

    @property
    def trials(self) -> list[Path]:
        """Folders of the trials that have been started."""
        return sorted(self.runs.glob("trial_*"))

    @property
    def report(self) -> Path:
        """Path of report.html, the page with the results of the sweep."""
        return self.runs / "report.html"

    @property
    def figures(self) -> Path:
        """Path of report.json, which contains the state and the results of the sweep for programs."""
        return self.runs / "report.json"

    @property
    def pictures(self) -> Path:
        """Folder of the pictures that show the results of the sweep."""
        return self.runs / "pictures"

    @property
    def comparison(self) -> Path:
        """Folder of the comparison between the sweep's best trial and the default configuration."""
        return self.runs / "confirmation"

    @property
    def files(self) -> list[Path]:
        """Paths of all files with results of the sweep that exist."""
        every = (self.report, self.figures, self.preset, *sorted(self.pictures.glob("*.*")))
        return [path for path in every if path.exists()]

    @property
    def conf(self) -> Path:
        """Config folder for SHEPHERD_SEARCH_PATH; it contains the sweep's best configuration as a preset."""
        return self.runs / "conf"

    @property
    def preset(self) -> Path:
        """Path of the preset file with the sweep's best configuration."""
        return self.conf / "exp" / f"{self.name}_best.yaml"

    @property
    def resume_command(self) -> str:
        """Command line that resumes the sweep."""
        return sweep_resume_command(self.name)

    def storage(self, plan: SweepPlan) -> str:
        """Return the URL of the database that contains the sweep's Optuna study.

        The URL is `sweep.storage`, or else the value of an environment variable (SHEPHERD_SWEEP_STORAGE or
        SHEPHERD_DATABASE_URL), or else a SQLite file in the sweep's folder. Raises UserError if the sweep was started
        with another database, because the sweep's trials are stored there.
        """
        address = self._choose_storage(plan)
        noted = self._read_note().get("storage", "") if self.plan_file.exists() else redact(address)
        if noted != redact(address):
            own = f"its own file {self.path / 'study.db'}"
            raise UserError(
                f"sweep {self.name}: its trials are stored in {noted or own}, but {STORAGE}, {DATABASE} and "
                f"sweep.storage now select {redact(address) or own}; load .env, or set {STORAGE} to the database that "
                "has the trials"
            )
        return address or f"sqlite:///{self.path / 'study.db'}"

    def study_name(self, plan: SweepPlan, copies: int | None = None) -> str:
        """Return the name of the sweep's Optuna study in the database.

        A retry of failed trials copies the study under another name, which ends in the number of the copy (`copies`;
        None = the copy that is used now). If several checkouts of the project may share the database, the name includes
        the random id of the sweep.
        """
        name = f"{self.name} {self.id}" if self._choose_storage(plan) else self.name
        copies = self.copies if copies is None else copies
        return f"{name} ({copies + 1})" if copies else name

    @property
    def copies(self) -> int:
        """Number of copies of the Optuna study that exist or existed; each retry of failed trials creates one."""
        return self._read_note().get("copies", 0) if self.plan_file.exists() else 0

    def note_copies(self, count: int) -> None:
        """Store in sweep.json that copy number `count` of the Optuna study is the current one."""
        noted = self._read_note() | {"copies": count}
        for place in (self.plan_file, self.runs / "sweep.json"):
            write_json(place, noted)

    @staticmethod
    def check_storage(plan: SweepPlan) -> None:
        """Raise UserError if the database that `sweep.storage` or the environment variables select cannot be opened."""
        if address := SweepFolder._choose_storage(plan):
            open_storage(address)

    @staticmethod
    def _choose_storage(plan: SweepPlan) -> str:
        return plan.config.storage or os.environ.get(STORAGE) or database_url("optuna", "psycopg2") or ""

    def driving(self) -> AbstractContextManager[object]:
        """Return a context manager that locks the sweep; UserError if another process of this machine is running it."""
        return hold(self.path / "lock", refusal=f"is running sweep {self.name}; wait until it ends")

    @property
    def is_driven(self) -> bool:
        """True if a process runs the sweep: on this machine (lock file), or on another one (lease of the server)."""
        return is_taken(self.path / "lock") or is_held_elsewhere(self.lease)

    def _read_note(self) -> dict[str, Any]:
        note = read_mapping(self.plan_file, self._fix, ("id", "runs", "config"))
        if note.get("format") != FORMAT:
            raise UserError(f"{self.plan_file}: this sweep {describe_other_format(note.get('format'), FORMAT)}")
        if wrong := next((key for key in ("id", "runs") if not isinstance(note[key], str)), None):
            raise UserError(f"{self.plan_file}: damaged, {wrong} has a wrong type; {self._fix}")
        return note


def refuse_password(plan: SweepPlan) -> None:
    """Raise UserError if `sweep.storage` contains a password, because the settings are stored in files."""
    storage = plan.config.storage or ""
    if redact(storage) != storage:
        raise UserError(
            f"sweep.storage={storage}: must not contain a password, because settings are stored with the sweep; set "
            f"{STORAGE} to the whole URL in the environment or in .env instead"
        )


def _dimension(values: dict[str, Any]) -> Dimension:
    when = {key: tuple(wanted) for key, wanted in values["when"].items()}
    return Dimension(**values | {"choices": tuple(values["choices"]), "when": when})


def open_storage(url: str) -> BaseStorage:
    """Open Optuna's storage at a URL, creating it if needed; raise UserError if it cannot be opened."""
    from optuna.storages import RDBStorage

    try:
        return RDBStorage(url, engine_kwargs=_options(url))
    except Exception as error:  # of SQLAlchemy or any database driver
        raise UserError(f"sweep.storage={url}: cannot be opened ({_reason(error)})") from None


def open_to_read(url: str) -> BaseStorage | None:
    """Open Optuna's storage at a URL without writing to it; return None if it does not exist.

    Raises UserError if it exists but cannot be read.
    """
    import sqlalchemy
    from optuna.storages import RDBStorage

    try:
        address = sqlalchemy.make_url(url)
        if address.get_backend_name() == "sqlite" and address.database:
            if not Path(address.database).exists():
                return None
            url = f"sqlite:///file:{quote(str(Path(address.database).absolute()))}?mode=ro&uri=true"
        engine = sqlalchemy.create_engine(url, **_options(url))
        try:
            if not sqlalchemy.inspect(engine).has_table("studies"):
                return None
        finally:
            engine.dispose()
        return RDBStorage(url, engine_kwargs=_options(url), skip_table_creation=True)
    except Exception as error:
        raise UserError(f"sweep.storage={url}: cannot be read ({_reason(error)})") from None


@contextmanager
def storage_errors(doing: str, resume_command: str) -> Iterator[None]:
    """Context manager that converts errors of Optuna's database to a RunError with a one-sentence message.

    The message begins with `doing`, such as "trial 3 cannot be stored", and ends with the command that resumes the
    sweep, `resume_command`. A UserError is raised again with this ending.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; after fixing this, resume with: {resume_command}") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        raise RunError(f"{doing} ({_reason(error)}); after fixing this, resume with: {resume_command}") from error


def _options(url: str) -> dict[str, object]:
    # Readers (`shepherd sweep status`, a dashboard) lock a SQLite file for short times.
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {"pool_pre_ping": True}


def _reason(error: Exception) -> str:
    """Return the message of the database driver without the long texts that Optuna and SQLAlchemy add."""
    cause = error.__cause__ or error
    return first_line(getattr(cause, "orig", None) or cause) or type(error).__name__

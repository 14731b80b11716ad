"""Folders of a sweep: its plan and its study in `sweeps_folder`, its runs and what people read under `log_root`."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.process.leases import is_held_elsewhere
from flows.process.locks import hold, is_taken
from flows.report.command_lines import sweep_resume_command
from flows.settings import DATABASE, database_url, sweeps_folder
from flows.sweeps.pace import Pace
from flows.sweeps.plan import NAME, SweepConfig, SweepPlan
from flows.sweeps.space import Dimension
from flows.sweeps.storage import open_storage
from rlcore.config.build import build
from rlcore.config.values import nearest
from rlcore.errors import UserError
from rlcore.store.directory import write_json, write_text
from rlcore.store.run_files import read_mapping
from rlcore.system.durable import make_private
from rlcore.system.secrets import redact

STORAGE = "SHEPHERD_SWEEP_STORAGE"


class SweepFolder:
    """Names of the files of one sweep.

        <sweeps folder>/<name>/         sweep.json (the plan), study.db, lock, workers.log, confirmed.json
        <log_root>/sweeps/<name>/       sweep.json, report.html, pictures/, conf/exp/, trial_0000/seed_<seed>/,
                                        winner_0000/, default/, confirmation/

    Args:
        name: of the sweep.
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
        """The sweep of a name, or whose folder of runs that is; `UserError` where there is none."""
        if (Path(name) / "sweep.json").is_file():
            name = Path(name).resolve().name
        folder = SweepFolder(name)
        if not NAME.fullmatch(name) or not folder.plan_file.exists():
            known = sorted(path.parent.name for path in sweeps_folder().glob("*/sweep.json"))
            there = nearest(name, known) or f"; sweeps: {', '.join(known) or 'none yet'}"
            raise UserError(f"{name}: no such sweep in {sweeps_folder()}{there}")
        return folder

    def write(self, plan: SweepPlan, runs: Path) -> None:
        """Note the plan and the folder of the runs, where another machine finds it as well."""
        for folder in (self.path, runs):
            make_private(folder)
        identity = self.id if self.plan_file.exists() else secrets.token_hex(8)
        self.storage(plan)  # refuses another one than before
        noted: dict[str, Any] = {"copies": self.copies} if self.copies else {}
        noted |= {"id": identity, "runs": str(runs), "storage": redact(self._choose_storage(plan))}
        noted |= dataclasses.asdict(plan)
        for place in (self.plan_file, runs / "sweep.json"):
            write_json(place, noted)

    def adopt(self, runs: Path) -> bool:
        """Take up the sweep of this name that is noted, here or beside its runs by another machine; False: none."""
        if not self.plan_file.exists() and (runs / "sweep.json").exists():
            make_private(self.path)
            write_text(self.plan_file, (runs / "sweep.json").read_text())
        return self.plan_file.exists()

    def read(self) -> SweepPlan:
        """The plan that was noted."""
        noted = self._read_note()
        config = build(SweepConfig, noted["config"], "sweep.")
        pace = Pace(**noted["pace"]) if noted.get("pace") else None  # earlier versions have not noted it
        return SweepPlan(
            config,
            noted["base"],
            [_dimension(values) for values in noted["space"]],
            pace,
            noted.get("default"),
            noted.get("outside", {}),
        )

    @property
    def id(self) -> str:
        """Mark that tells a sweep from one of the same name that was there before."""
        return self._read_note()["id"]

    @property
    def runs(self) -> Path:
        """The folder of its runs."""
        return Path(self._read_note()["runs"])

    def trial(self, number: int) -> Path:
        """The folder of a trial's runs."""
        return self.runs / f"trial_{number:04d}"

    @property
    def trials(self) -> list[Path]:
        """The folders of trials that there are."""
        return sorted(self.runs.glob("trial_*"))

    @property
    def report(self) -> Path:
        """The page on what came of it."""
        return self.runs / "report.html"

    @property
    def figures(self) -> Path:
        """State of a sweep for a program."""
        return self.runs / "report.json"

    @property
    def pictures(self) -> Path:
        """The folder of its pictures."""
        return self.runs / "pictures"

    @property
    def comparison(self) -> Path:
        """The folder of the comparison of the winner with the default configuration."""
        return self.runs / "confirmation"

    @property
    def files(self) -> list[Path]:
        """Files that people and programs read of it, as far as it is there."""
        every = (self.report, self.figures, self.preset, *sorted(self.pictures.glob("*.*")))
        return [path for path in every if path.exists()]

    @property
    def conf(self) -> Path:
        """A folder of config files with the best configuration as a preset."""
        return self.runs / "conf"

    @property
    def preset(self) -> Path:
        """The best configuration."""
        return self.conf / "exp" / f"{self.name}_best.yaml"

    @property
    def resume_command(self) -> str:
        """The command line that goes on with it."""
        return sweep_resume_command(self.name)

    def storage(self, plan: SweepPlan) -> str:
        """The address of the study's database: `sweep.storage`, the environment's, else a file here.

        A `UserError` where the sweep has been begun in another one, whose trials would be missed.
        """
        address = self._choose_storage(plan)
        noted = self._read_note().get("storage", "") if self.plan_file.exists() else redact(address)
        if noted != redact(address):
            raise UserError(
                f"sweep {self.name}: its trials are in {noted or 'the file of its own'}, and {STORAGE}, {DATABASE} and "
                f"sweep.storage mean {redact(address) or 'that file'} now; load .env, or set {STORAGE}"
            )
        return address or f"sqlite:///{self.path / 'study.db'}"

    def study_name(self, plan: SweepPlan, copies: int | None = None) -> str:
        """Name of the study, or of its n-th copy: by more than the name in a database of several checkouts."""
        name = f"{self.name} {self.id}" if self._choose_storage(plan) else self.name
        copies = self.copies if copies is None else copies
        return f"{name} ({copies + 1})" if copies else name

    @property
    def copies(self) -> int:
        """Number of times that its study was copied, to do failed trials again."""
        return self._read_note().get("copies", 0) if self.plan_file.exists() else 0

    def note_copies(self, count: int) -> None:
        """Have the study be its n-th copy from now on."""
        noted = self._read_note() | {"copies": count}
        for place in (self.plan_file, self.runs / "sweep.json"):
            write_json(place, noted)

    @staticmethod
    def check_storage(plan: SweepPlan) -> None:
        """Refuse, in a `UserError`, a database of the user's own that cannot be opened; nothing of a sweep is made."""
        if address := SweepFolder._choose_storage(plan):
            open_storage(address)

    @staticmethod
    def _choose_storage(plan: SweepPlan) -> str:
        return plan.config.storage or os.environ.get(STORAGE) or database_url("optuna", "psycopg2") or ""

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Be the one process that drives the sweep inside; `UserError` where another one is."""
        with hold(self.path / "lock", refusal=f"is driving sweep {self.name}; wait for it"):
            yield

    @property
    def is_driven(self) -> bool:
        """True where some process drives it just now, or did last on another machine, as far as can be seen here."""
        return is_taken(self.path / "lock") or is_held_elsewhere(self.lease)

    def _read_note(self) -> dict[str, Any]:
        fix = f"copy it from {self.name} in the folder `sweeps` of the runs, or move {self.path} away"
        return read_mapping(self.plan_file, fix, ("id", "runs", "config"))


def refuse_password(plan: SweepPlan) -> None:
    """Refuse an address with a password among the settings: they are stored."""
    storage = plan.config.storage or ""
    if redact(storage) != storage:
        raise UserError(
            f"sweep.storage={storage}: settings are stored with the sweep, so no password may stand in them; put the "
            f"whole address into {STORAGE}, in the environment or in .env"
        )


def _dimension(values: dict[str, Any]) -> Dimension:
    when = {key: tuple(wanted) for key, wanted in values["when"].items()}
    return Dimension(**values | {"choices": tuple(values["choices"]), "when": when})

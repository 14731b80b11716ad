"""Output of `shepherd sweep status` for a sweep without a driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from flows.sweeps import study as study_module
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.status import facts, status
from rlcore.store.directory import write_json
from tests.flows.sweeps.fake import drive, make_sweep

FEW = ["sweep.trials=2", "sweep.batch=2", "sweep.pruner=none"]


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> None:
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    for name in ("open_storage", "open_to_read"):
        monkeypatch.setattr(study_module, name, lambda url: storages.setdefault(url, memory()))


@pytest.fixture
def started_sweep(tmp_path: Path) -> Iterator[SweepFolder]:
    folder = make_sweep(tmp_path, f"driven_{tmp_path.name}", *FEW, "sweep.confirm_seeds=0")[0]
    Sweep(folder, folder.read()).study.ask()
    yield folder


def test_status_names_resume_command_without_driver(started_sweep: SweepFolder) -> None:
    assert ("interrupted", f"resume with {started_sweep.resume_command}") in facts(status(started_sweep))
    with started_sweep.driving():
        assert status(started_sweep)["go_on"] is None
    assert status(started_sweep)["go_on"] == started_sweep.resume_command


def test_status_shows_stopped_trials_without_driver(started_sweep: SweepFolder) -> None:
    assert ("trials", "1 of 2: 1 stopped") in facts(status(started_sweep))
    with started_sweep.driving():
        assert ("trials", "1 of 2: 1 running") in facts(status(started_sweep))


def test_status_recognizes_driver_on_another_machine(started_sweep: SweepFolder) -> None:
    started_sweep.lease.write_text(json.dumps({"host": "far-away", "lease": "1"}))
    assert status(started_sweep)["go_on"] is None
    started_sweep.lease.unlink()
    assert status(started_sweep)["go_on"] == started_sweep.resume_command


def test_status_of_finished_sweep_names_no_command(tmp_path: Path) -> None:
    trials = make_sweep(tmp_path, f"over_{tmp_path.name}", *FEW, "sweep.confirm_seeds=0")[0]
    drive(trials)
    assert status(trials)["go_on"] is None
    confirmed = make_sweep(tmp_path, f"confirmed_{tmp_path.name}", *FEW)[0]
    drive(confirmed)
    found = status(confirmed)
    assert found["go_on"] == confirmed.resume_command  # the confirmation is missing
    write_json(confirmed.confirmed, {"trial": found["best"]["number"], "seeds": [], "words": "better"})
    assert status(confirmed)["go_on"] is None

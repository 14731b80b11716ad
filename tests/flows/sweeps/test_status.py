"""Read-only status of sweeps with an existing, lost or damaged study."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.sweeps.folder import SweepFolder
from flows.sweeps.status import facts, status
from flows.sweeps.study import Study
from rlcore.errors import RunError, UserError
from rlcore.store.directory import write_json
from tests.flows.sweeps.fake import drive, make_sweep
from tests.flows.synthetic_runs import synthetic_run

FEW = ["sweep.trials=3", "sweep.batch=2", "sweep.sampler=random", "sweep.confirm_seeds=0"]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepFolder]:
    """Yield a finished sweep with its own database."""
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "home"))
    folder, _ = make_sweep(tmp_path, "mine", *FEW)
    drive(folder)
    yield folder


def content(folder: SweepFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


def test_status_reads_sweep_without_writing(ended: SweepFolder) -> None:
    before = content(ended)
    found = status(ended)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 3
    assert found["best"] in found["trials"] and found["lost"] is None
    assert content(ended) == before


def test_study_there_is_read_only(ended: SweepFolder, tmp_path: Path) -> None:
    folder, plan = make_sweep(tmp_path, "mine", *FEW[1:], "sweep.trials=4")
    at = folder.storage(plan), folder.study_name(plan)
    assert Study(plan, *at).ask() == 3
    study = Study.there(plan, *at)
    assert study is not None and study.list_unfinished() == [3]
    with pytest.raises(
        RunError, match=r"cannot be stored \(attempt to write a readonly database\).*sweep resume mine$"
    ):
        study.tell(3, "fail", sentence="not to be noted")


@pytest.mark.parametrize(("mode", "message"), [("batch", "trials are the same as before"), ("async", "may differ")])
def test_status_reports_lost_study(ended: SweepFolder, tmp_path: Path, mode: str, message: str) -> None:
    few = [override for override in FEW if mode == "batch" or not override.startswith("sweep.batch=")]
    folder, plan = make_sweep(tmp_path, mode, *few, f"sweep.mode={mode}")
    assert status(folder)["lost"] is None  # not started yet
    for number in range(2):
        folder.trial(number).mkdir(parents=True)
    found = status(folder)
    assert found["trials"] == [] and found["best"] is None and found["wanted"] == 3
    assert "contains 2 trial folders" in found["lost"] and message in found["lost"]
    assert f"sweep resume {mode}" in found["lost"]
    assert ("study", found["lost"]) in facts(found)
    assert not Path(folder.storage(plan).removeprefix("sqlite:///")).exists()


def test_study_there_returns_none_without_study(ended: SweepFolder) -> None:
    file = ended.path / "study.db"
    with sqlite3.connect(file) as database:
        database.execute("UPDATE studies SET study_name = 'other'")
    assert Study.there(ended.read(), ended.storage(ended.read()), ended.study_name(ended.read())) is None
    file.write_bytes(b"")  # as if its creator was killed
    assert Study.there(ended.read(), ended.storage(ended.read()), ended.study_name(ended.read())) is None


def test_status_refuses_damaged_database(ended: SweepFolder) -> None:
    (ended.path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"cannot be read \(file is not a database\); after .*sweep resume mine$"):
        status(ended)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "x"),
        ("runs", 7),
        ("config", {"trials": "x"}),
        ("config", [1]),
        ("space", [7]),
        ("space", None),
        ("pace", {"a": 1}),
    ],
)
def test_read_refuses_plan_with_wrong_type(ended: SweepFolder, key: str, value: object) -> None:
    plan = json.loads(ended.plan_file.read_text())
    write_json(ended.plan_file, plan | {key: value})
    with pytest.raises(UserError, match=rf"^{ended.plan_file}: .*; .*") as refusal:
        ended.read()
    assert "copy it from" in str(refusal.value) or "restore it from a copy" in str(refusal.value)


@pytest.mark.parametrize("change", [{"trial": "x"}, {"words": 7}, {"seeds": None}])
def test_status_refuses_confirmation_with_wrong_type(ended: SweepFolder, change: dict[str, object]) -> None:
    write_json(ended.confirmed, {"trial": 0, "seeds": [], "words": "better"} | change)
    with pytest.raises(UserError, match=rf"^{ended.confirmed}: damaged, {next(iter(change))} .*; remove it and run"):
        status(ended)


def test_status_refuses_budget_with_wrong_type(ended: SweepFolder) -> None:
    run = synthetic_run(ended.trial(0) / "seed_1", "a", algo={"name": "ppo", "total_steps": "x"})
    with pytest.raises(UserError, match=rf"^{run.config}: damaged, algo.total_steps is not a number; restore it"):
        status(ended)


def test_study_refuses_damaged_database(ended: SweepFolder) -> None:
    (ended.path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"cannot be opened \(file is not a database\); after .*sweep resume mine$"):
        Study(ended.read(), ended.storage(ended.read()), ended.study_name(ended.read()))


def test_study_trials_reports_damaged_table(ended: SweepFolder) -> None:
    study = Study(ended.read(), ended.storage(ended.read()), ended.study_name(ended.read()))
    with sqlite3.connect(ended.path / "study.db") as database:
        database.execute("DROP TABLE trial_params")
    with pytest.raises(RunError, match=r"sweep mine: its trials cannot be read \(no such table: trial_params\); after"):
        _ = study.trials

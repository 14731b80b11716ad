"""`sweep status` reads, and writes nothing: of a sweep whose study is there, lost, or nobody's to write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.report.sweep_tables import facts
from flows.sweeps.folder import SweepFolder
from flows.sweeps.study import Study
from flows.sweeps.sweep_report import status
from rlcore.errors import RunError, UserError
from tests.flows.sweeps.fake import drive, made

FEW = ["sweep.trials=3", "sweep.batch=2", "sweep.sampler=random", "sweep.confirm_seeds=0"]


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepFolder]:
    """A sweep that has ended, in a database of its own."""
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "home"))
    folder, _ = made(tmp_path, "mine", *FEW)
    drive(folder)
    yield folder


def content(folder: SweepFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}


def test_status_reads_sweep_without_writing(swept: SweepFolder) -> None:
    before = content(swept)
    found = status(swept)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 3
    assert found["best"] in found["trials"] and found["lost"] is None
    assert content(swept) == before


def test_study_there_is_read_only(swept: SweepFolder, tmp_path: Path) -> None:
    folder, plan = made(tmp_path, "mine", *FEW[1:], "sweep.trials=4")
    at = folder.storage(plan), folder.study_name(plan)
    assert Study(plan, *at).ask() == 3
    study = Study.there(plan, *at)
    assert study is not None and study.list_unfinished() == [3]
    with pytest.raises(
        RunError, match=r"cannot be stored \(attempt to write a readonly database\).*sweep resume mine$"
    ):
        study.tell(3, "fail", sentence="not to be noted")


@pytest.mark.parametrize(("mode", "said"), [("batch", "trials are the same as before"), ("async", "may differ")])
def test_status_reports_lost_study(swept: SweepFolder, tmp_path: Path, mode: str, said: str) -> None:
    few = [override for override in FEW if mode == "batch" or not override.startswith("sweep.batch=")]
    folder, plan = made(tmp_path, mode, *few, f"sweep.mode={mode}")
    assert status(folder)["lost"] is None  # it has not begun
    for number in range(2):
        folder.trial(number).mkdir(parents=True)
    found = status(folder)
    assert found["trials"] == [] and found["best"] is None and found["wanted"] == 3
    assert "contains 2 trial folders" in found["lost"] and said in found["lost"]
    assert f"sweep resume {mode}" in found["lost"]
    assert ("study", found["lost"]) in facts(found)
    assert not Path(folder.storage(plan).removeprefix("sqlite:///")).exists()


def test_study_there_returns_none_without_study(swept: SweepFolder) -> None:
    file = swept.path / "study.db"
    with sqlite3.connect(file) as database:
        database.execute("UPDATE studies SET study_name = 'other'")
    assert Study.there(swept.read(), swept.storage(swept.read()), swept.study_name(swept.read())) is None
    file.write_bytes(b"")  # as who made it was killed
    assert Study.there(swept.read(), swept.storage(swept.read()), swept.study_name(swept.read())) is None


def test_status_refuses_damaged_database(swept: SweepFolder) -> None:
    (swept.path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"cannot be read \(file is not a database\); after .*sweep resume mine$"):
        status(swept)


def test_study_refuses_damaged_database(swept: SweepFolder) -> None:
    (swept.path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"cannot be opened \(file is not a database\); after .*sweep resume mine$"):
        Study(swept.read(), swept.storage(swept.read()), swept.study_name(swept.read()))


def test_study_trials_reports_damaged_table(swept: SweepFolder) -> None:
    study = Study(swept.read(), swept.storage(swept.read()), swept.study_name(swept.read()))
    with sqlite3.connect(swept.path / "study.db") as database:
        database.execute("DROP TABLE trial_params")
    with pytest.raises(RunError, match=r"sweep mine: its trials cannot be read \(no such table: trial_params\); after"):
        _ = study.trials

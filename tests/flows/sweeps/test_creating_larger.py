"""Report page during a sweep, and the default configuration as the first trial."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.runs.listeners import emit
from flows.sweeps import report as report_file
from flows.sweeps.creating import default_of
from flows.sweeps.driving import Sweep
from flows.sweeps.plan import plan, presets
from flows.sweeps.report import refresh_page, refresh_reports, write_page
from flows.sweeps.status import facts, status
from tests.flows.sweeps.fake import drive, drive_sweep, make_sweep
from tests.soaking import always, heavy

pytestmark = heavy

OVERRIDES = ["exp=ppo", "algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.update_epochs=interval(1,20)"]


@pytest.fixture(autouse=True)
def shepherd_home(home: Path) -> None:
    """Store the sweeps of these tests in a separate folder."""


def test_default_of_returns_preset_values() -> None:
    assert default_of(plan(OVERRIDES)) == ({"algo.optimizer.lr": 1e-3, "algo.update_epochs": 10}, {})
    assert default_of(plan([OVERRIDES[0], "algo.normalize_advantages=choice(true,false)"])).values is not None
    assert default_of(plan([OVERRIDES[0], "algo.max_grad_norm=choice(0,0.5)"])).values is not None


@pytest.mark.parametrize(
    ("varied", "outside"),
    [
        ("algo.optimizer.lr=interval(1e-5,1e-4)", {"algo.optimizer.lr": "0.001"}),
        ("algo.dense_act=choice(relu,elu)", {"algo.dense_act": "tanh"}),
        ("algo.update_epochs=range(1,5,2)", {"algo.update_epochs": "10"}),
        ("algo.normalize_advantages=choice(1,2)", {"algo.normalize_advantages": "true"}),
        ("optim=choice(adam,sgd)", {"optim": ""}),
    ],
)
def test_default_of_names_values_outside_space(varied: str, outside: dict[str, str]) -> None:
    assert default_of(plan([OVERRIDES[0], varied])) == (None, outside)


def test_default_of_grid_adds_no_trial() -> None:
    grid = [OVERRIDES[0], "sweep.sampler=grid"]
    assert default_of(plan([*grid, "algo.update_epochs=choice(10,20)"])) == (None, {})
    assert default_of(plan([*grid, "algo.update_epochs=choice(1,2)"])) == (None, {"algo.update_epochs": "10"})


@pytest.mark.parametrize("preset", presets())
def test_sweep_presets_contain_their_default(preset: str) -> None:
    assert default_of(plan([f"sweep={preset}"])).outside == {}


def test_status_and_page_name_default_outside_space(tmp_path: Path) -> None:
    folder, sweep_plan = make_sweep(tmp_path, "outside", "sweep.trials=1")
    varied = sweep_plan.space[0]
    folder.write(dataclasses.replace(sweep_plan, outside={varied.key: "7"}), folder.runs)
    sweep = drive(folder)
    text = f"not the default configuration: {varied.key}=7 is not in {varied.written}"
    assert ("trial 0", text) in facts(status(folder))
    write_page(sweep, whole=False)
    assert text in folder.report.read_text()


@always
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_default_is_trial_0_and_changes_no_other(tmp_path: Path, sampler: str) -> None:
    options = ["sweep.trials=4", f"sweep.sampler={sampler}"]
    before, _ = make_sweep(tmp_path, "before", *options)
    folder, sweep_plan = make_sweep(tmp_path, "with", *options)
    default = {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 5}
    folder.write(dataclasses.replace(sweep_plan, default=default), folder.runs)
    assert folder.read().default == default
    sweep, other = drive(folder), drive(before)
    params = [sweep.study.params(number) for number in range(4)]
    assert params[0] == default and sweep.study.params(0) != other.study.params(0)
    assert params[1:] == [other.study.params(number) for number in range(1, 4)]
    assert [trial.get("default") for trial in write_page(sweep, whole=False)["trials"]] == [True, None, None, None]


@always
def test_refresh_reports_writes_page_from_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = make_sweep(tmp_path, "grows", "sweep.trials=4")
    sweep, pages, written = Sweep(folder, folder.read()), [], threading.Semaphore(0)
    real = report_file.write_page

    def watched(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        pages.append((len(found["trials"]), folder.report.read_text()))
        written.release()
        return found

    monkeypatch.setattr(report_file, "write_page", watched)
    monkeypatch.setattr(report_file, "SHARE", 0)
    with refresh_reports(sweep):
        assert written.acquire(timeout=60)
        drive_sweep(sweep)
        emit("trial", {"number": 3})
        while pages[-1][0] < 4:
            assert written.acquire(timeout=60)
    assert pages[0][0] == 0 and "0 of 4" in pages[0][1]
    assert "4 of 4" in pages[-1][1] and "Learning curves of trials" in pages[-1][1]
    assert not folder.pictures.exists()  # picture files only at the end of a sweep


def test_refresh_reports_updates_text_before_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = make_sweep(tmp_path, "quick", "sweep.trials=4")
    sweep, written = Sweep(folder, folder.read()), threading.Semaphore(0)
    real, drawn = report_file.write_page, []

    def watched(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        written.release()
        return found

    monkeypatch.setattr(report_file, "write_page", watched)
    monkeypatch.setattr(report_file, "draw_pictures", lambda *_: drawn.append(len(sweep.study.trials)) or [])
    monkeypatch.setattr(report_file, "SHARE", 1e9)  # pictures are drawn once
    monkeypatch.setattr(report_file, "SHARE_OF_TEXT", 0)
    monkeypatch.setattr(report_file, "FRESH", 60.0)  # seconds
    with refresh_reports(sweep):
        assert written.acquire(timeout=60)
        drive_sweep(sweep)
        while "4 of 4: 4 complete" not in folder.report.read_text():
            assert written.acquire(timeout=30)
    assert json.loads(folder.figures.read_text())["trials"] == status(folder)["trials"]
    assert drawn == [0]


def test_write_page_keeps_complete_page(tmp_path: Path) -> None:
    folder, _ = make_sweep(tmp_path, "whole", "sweep.trials=2")
    sweep = drive(folder)
    write_page(sweep, whole=True)
    folder.report.write_text("whole")
    write_page(sweep, whole=False)
    assert folder.report.read_text() == "whole"


def test_refresh_page_updates_after_killed_driver(tmp_path: Path) -> None:
    folder, _ = make_sweep(tmp_path, "killed", "sweep.trials=4")
    sweep = Sweep(folder, folder.read())
    write_page(sweep, whole=False)
    sweep.study.ask()
    found = status(folder)
    refresh_page(folder, found)
    text = folder.report.read_text()
    assert "1 of 4: 1 stopped" in text and "shepherd sweep resume killed" in text
    before = folder.report.stat().st_mtime_ns
    refresh_page(folder, status(folder))
    assert folder.report.stat().st_mtime_ns == before


def test_refresh_page_skips_finished_sweep(tmp_path: Path) -> None:
    folder, _ = make_sweep(tmp_path, "over", "sweep.trials=2", "sweep.confirm_seeds=0")
    drive(folder)
    refresh_page(folder, status(folder))
    assert not folder.report.exists()


def test_refresh_reports_writes_page_of_interrupted_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = make_sweep(tmp_path, "broken", "sweep.trials=4")
    sweep = Sweep(folder, folder.read())
    monkeypatch.setattr(report_file, "SHARE", 1e6)  # no update during the sweep
    with pytest.raises(KeyboardInterrupt), refresh_reports(sweep):
        drive_sweep(sweep)
        raise KeyboardInterrupt
    text = folder.report.read_text()
    assert "Value of each trial" in text and "shepherd sweep resume broken" in text


def test_refresh_reports_logs_unwritable_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = make_sweep(tmp_path, "mute", "sweep.trials=1")

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(report_file, "write_page", fail)
    with refresh_reports(Sweep(folder, folder.read())):
        pass
    assert "the page of sweep mute could not be updated: OSError: no space left" in caplog.text

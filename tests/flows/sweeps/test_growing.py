"""The page of a sweep at work, and the default configuration as its first trial."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.runs.listeners import tell
from flows.sweeps import growing as growing_file
from flows.sweeps.driving import Sweep
from flows.sweeps.growing import growing
from flows.sweeps.plan import plan
from flows.sweeps.refusals import default_of
from flows.sweeps.sweep_report import write_page
from tests.flows.sweeps.fake import drive, driven, made
from tests.soaking import file_in_turn

pytestmark = file_in_turn

TYPED = ["exp=ppo", "algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.update_epochs=interval(1,20)"]


@pytest.fixture(autouse=True)
def here(home: Path) -> None:
    """Sweeps lie in a folder of their own."""


def test_the_default_configuration_is_what_the_preset_has_where_the_space_holds_it() -> None:
    assert default_of(plan(TYPED)) == {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 10}
    assert default_of(plan([TYPED[0], "algo.optimizer.lr=interval(1e-5,1e-4)"])) is None
    assert default_of(plan([TYPED[0], "algo.dense_act=choice(relu,elu)"])) is None
    assert default_of(plan([TYPED[0], "algo.normalize_advantages=choice(true,false)"])) is not None
    assert default_of(plan([TYPED[0], "algo.update_epochs=range(1,5,2)"])) is None
    assert default_of(plan([TYPED[0], "optim=choice(adam,sgd)"])) is None  # a group of files has no value
    assert default_of(plan([TYPED[0], "algo.update_epochs=choice(10,20)", "sweep.sampler=grid"])) is None


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_it_is_trial_0_and_no_other_trial_is_another_for_it(tmp_path: Path, sampler: str) -> None:
    options = ["sweep.trials=4", f"sweep.sampler={sampler}"]
    before, _ = made(tmp_path, "before", *options)
    folder, wanted = made(tmp_path, "with", *options)
    default = {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 5}
    folder.write(dataclasses.replace(wanted, default=default), folder.runs)
    assert folder.read().default == default
    sweep, other = drive(folder), drive(before)
    params = [sweep.study.params(number) for number in range(4)]
    assert params[0] == default and sweep.study.params(0) != other.study.params(0)
    assert params[1:] == [other.study.params(number) for number in range(1, 4)]
    assert [trial.get("default") for trial in write_page(sweep, whole=False)["trials"]] == [True, None, None, None]


def test_a_page_is_there_from_the_beginning_and_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = made(tmp_path, "grows", "sweep.trials=4")
    sweep, pages, written = Sweep(folder, folder.read()), [], threading.Semaphore(0)
    real = growing_file.write_page

    def watched(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        pages.append((len(found["trials"]), folder.report.read_text()))
        written.release()
        return found

    monkeypatch.setattr(growing_file, "write_page", watched)
    monkeypatch.setattr(growing_file, "SHARE", 0)
    with growing(sweep):
        assert written.acquire(timeout=60)
        driven(sweep)
        tell("trial", {"number": 3})
        while pages[-1][0] < 4:
            assert written.acquire(timeout=60)
    assert pages[0][0] == 0 and "0 of 4" in pages[0][1]
    assert "4 of 4" in pages[-1][1] and "Learning curves of trials" in pages[-1][1]
    assert not folder.pictures.exists()  # files are for a sweep that is over


def test_a_sweep_that_is_broken_off_has_its_page_as_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = made(tmp_path, "broken", "sweep.trials=4")
    sweep = Sweep(folder, folder.read())
    monkeypatch.setattr(growing_file, "SHARE", 1e6)  # no second page while it runs
    with pytest.raises(KeyboardInterrupt), growing(sweep):
        driven(sweep)
        raise KeyboardInterrupt
    text = folder.report.read_text()
    assert "Value of each trial" in text and "shepherd sweep resume broken" in text


def test_a_page_that_cannot_be_written_ends_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = made(tmp_path, "mute", "sweep.trials=1")

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(growing_file, "write_page", fail)
    with growing(Sweep(folder, folder.read())):
        pass
    assert "the page of sweep mute is not drawn: OSError: no space left" in caplog.text

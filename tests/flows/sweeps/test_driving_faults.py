"""Machine faults leave trials unfinished; retries of unfinished and failed trials."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest

from flows.sweeps import study as study_module
from flows.sweeps.creating import change_sweep
from flows.sweeps.driving import ATTEMPTS, Sweep, trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import End, Job, end_by
from rlcore.errors import DiskFault, EnvironmentLost, ProcessKilled, RunError, UserError, exit_error
from tests.flows.sweeps.fake import FakeExecutor, drive, make_sweep, trial_results

FEW = [
    "sweep.trials=6",
    "sweep.batch=2",
    "sweep.sampler=random",
    "sweep.pruner=none",
    "sweep.confirm_seeds=0",
    "sweep.seed=3",
]
FULL = end_by(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"))
KILLED = end_by(exit_error(-9, "worker 77 was killed by signal 9"))


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> None:
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    monkeypatch.setattr(study_module, "open_storage", lambda url: storages.setdefault(url, memory()))


class FaultyExecutor(FakeExecutor):
    """Executor with the ends in `faults` by trial number; records the number of trials that run beside each."""

    def __init__(self, sweep: Sweep, places: int, faults: dict[int, list[End]]) -> None:
        super().__init__(sweep, places, 0)
        self.faults = faults
        self.beside: dict[str, int] = {}

    def start(self, job: Job) -> None:
        super().start(job)
        self.beside[f"{job.number}, {Counter(self.started)[job.label]}"] = len(self.running) - 1

    def do(self, job: Job) -> End:
        assert job.number is not None
        ends = self.faults.get(job.number)
        return ends.pop(0) if ends else super().do(job)


def drive_with_faults(folder: SweepFolder, faults: dict[int, list[End]]) -> tuple[Sweep, FaultyExecutor]:
    sweep = Sweep(folder, folder.read())
    sweep.executor = executor = FaultyExecutor(sweep, 2, faults)
    for job in trials(sweep):
        executor.start(job)
    return sweep, executor


@pytest.fixture
def whole(tmp_path: Path) -> list[tuple[Any, ...]]:
    """Return the trials of a sweep without faults; all are complete."""
    found = trial_results(drive(make_sweep(tmp_path, "whole", *FEW)[0], 2))
    assert {state for _, state, *_ in found} == {"COMPLETE"}
    return found


def without_attempts(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [trial[:5] for trial in found]  # without the number of attempts


def test_full_disk_leaves_trials_unfinished(tmp_path: Path, whole: Any) -> None:
    folder = make_sweep(tmp_path, "full", *FEW)[0]
    with pytest.raises(DiskFault, match=r"^trial 2 is unfinished: runs/x: No space left on device$"):
        drive_with_faults(folder, {2: [FULL], 3: [FULL]})
    study = Sweep(folder, folder.read()).study
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "RUNNING", "RUNNING"]
    assert without_attempts(trial_results(drive_with_faults(folder, {})[0])) == without_attempts(
        whole
    )  # after the disk has space again


def test_killed_trial_is_retried_alone(tmp_path: Path, whole: Any) -> None:
    sweep, executor = drive_with_faults(make_sweep(tmp_path, "once", *FEW)[0], {2: [KILLED]})
    assert without_attempts(trial_results(sweep)) == without_attempts(whole)
    assert executor.beside["2, 2"] == 0


def test_repeatedly_killed_trial_fails_after_last_attempt(tmp_path: Path, whole: Any) -> None:
    folder, faults = make_sweep(tmp_path, "always", *FEW)[0], {1: [KILLED] * ATTEMPTS}
    with pytest.raises(ProcessKilled, match="trial 1 is unfinished: worker 77 was killed by signal 9"):
        drive_with_faults(folder, faults)
    assert Sweep(folder, folder.read()).study.list_unfinished() == [1]
    sweep, _ = drive_with_faults(folder, faults)
    assert [trial.state.name for trial in sweep.study.trials] == ["COMPLETE", "FAIL", *["COMPLETE"] * 4]
    message = sweep.study.trials[1].user_attrs["sentence"]
    assert f"; gave up after {ATTEMPTS} attempts; retry: " in message and "sweep resume always --failed" in message


def test_change_sweep_failed_retries_only_failed_trials(tmp_path: Path, whole: Any) -> None:
    folder, plan = make_sweep(tmp_path, "failed", *FEW)
    sweep, _ = drive_with_faults(folder, {1: [End("failed", "an environment that was not there")]})
    assert sweep.study.list_failed() == [1]
    before = sweep.study._study.study_name
    change_sweep("failed", [], failed=True)
    sweep, executor = drive_with_faults(folder, {})
    assert [label.partition(":")[0] for label in executor.started] == ["trial 1"]
    assert without_attempts(trial_results(sweep)) == without_attempts(whole)
    assert sweep.study._study.study_name == f"{before} (2)"
    assert optuna.get_all_study_names(sweep.study._database) == [f"{before} (2)"]
    folder.write(plan, folder.runs)  # as each resume does
    assert folder.study_name(plan) == f"{before} (2)"
    with pytest.raises(UserError, match=r"^--failed: no trial of sweep failed has failed; remove --failed$"):
        change_sweep("failed", [], failed=True)


def test_change_sweep_failed_keeps_default_trial(tmp_path: Path) -> None:
    folder, plan = make_sweep(tmp_path, "first", *FEW)
    default = {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 5}
    folder.write(dataclasses.replace(plan, default=default), folder.runs)
    sweep, _ = drive_with_faults(folder, {0: [End("failed", "a fault")]})
    notes = sweep.study.trials[0].user_attrs
    assert notes["default"] is True and "sentence" in notes
    change_sweep("first", [], failed=True)
    assert Sweep(folder, folder.read()).study.trials[0].user_attrs == {"default": True}


def test_study_copy_replaces_incomplete_copy(tmp_path: Path) -> None:
    sweep, _ = drive_with_faults(make_sweep(tmp_path, "half", *FEW)[0], {0: [End("failed", "a fault")]})
    sweep.study.copy("half (2)")
    sweep.study.copy("half (2)")
    (copy,) = (s for s in optuna.get_all_study_summaries(sweep.study._database) if s.study_name == "half (2)")
    assert copy.n_trials == 6


@pytest.mark.parametrize(
    ("error", "state", "fault"),
    [
        (DiskFault("full"), "unfinished", "DiskFault"),
        (OSError(errno.EROFS, "read-only"), "unfinished", "DiskFault"),
        (OSError(errno.ENOMEM, "no memory"), "unfinished", "OutOfMemory"),
        (MemoryError(), "unfinished", "OutOfMemory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "unfinished",
            "OutOfMemory",
        ),
        (exit_error(-15, "the trainer was killed by signal 15"), "unfinished", "ProcessKilled"),
        (exit_error(-11, "the trainer was killed by signal 11"), "failed", ""),  # a bug, not a machine fault
        (exit_error(1, "the trainer ended with code 1"), "failed", ""),
        (OSError(errno.ENOENT, "no such file"), "failed", ""),
        (EnvironmentLost("environment 3 hung"), "failed", ""),
        (RunError("not finite after 512 env steps"), "failed", ""),
        (UserError("algo.gamma=2: must be <= 1"), "failed", ""),
    ],
)
def test_end_by_classifies_machine_faults(error: Exception, state: str, fault: str) -> None:
    end = end_by(error)
    assert (end.state, end.fault) == (state, fault) and end.sentence

"""Confirmation of a sweep's winner: interval of the difference, verdict and registration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from scipy import stats

from flows.sweeps import study as study_module
from flows.sweeps import winner
from flows.sweeps.driving import Sweep
from flows.sweeps.jobs import End, Job, iqm
from flows.sweeps.study import CONFIRMATION, TRAINING
from flows.sweeps.winner import compare_with_default, confirm, interval, verdict
from rlcore.errors import RunError
from rlcore.store.directory import RunDirectory
from tests.flows.sweeps.fake import EVALUATIONS, FakeExecutor, drive, evaluate, make_sweep

DEFAULT = {"algo.optimizer.lr": 1e-1, "algo.update_epochs": 1}  # far from the best of tests.flows.sweeps.fake.score


def test_iqm_matches_scipy_trimmed_mean() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 24):
        values = rng.normal(size=count).tolist()
        assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_compare_with_default_detects_better_and_worse() -> None:
    rng = np.random.default_rng(1)
    low, high = rng.normal(100, 5, 10).tolist(), rng.normal(150, 5, 10).tolist()
    assert compare_with_default(high, low)["better"] is True
    assert compare_with_default(high, low)["words"].endswith("does not contain 0")
    worse = compare_with_default(low, high)
    assert worse["better"] is False and "worse than" in worse["words"]


def test_compare_with_default_rejects_noise() -> None:
    """Two samples of one distribution: about one comparison in twenty reports a difference."""
    rng = np.random.default_rng(2)
    results = [
        compare_with_default(rng.normal(100, 20, 10).tolist(), rng.normal(100, 20, 10).tolist()) for _ in range(60)
    ]
    assert sum(result["better"] for result in results) <= 8
    assert sum(result["words"].endswith("] contains 0") for result in results) >= 45


def test_compare_with_default_requires_ten_seeds() -> None:
    found = compare_with_default([500.0] * 9, [10.0] * 9)
    assert found["better"] is None and "at least 10 seeds" in found["words"]
    assert compare_with_default([500.0] * 10, [10.0] * 10)["better"] is True


def test_interval_pairs_values_by_seed() -> None:
    """Noise that both sides share in a seed cancels in the difference."""
    shared = np.random.default_rng(3).normal(0, 100, 12)
    low, high = interval((shared + 5).tolist(), shared.tolist())
    assert low == pytest.approx(5) and high == pytest.approx(5)


class ConfirmingExecutor(FakeExecutor):
    """Executor of confirmation runs; a run without the varied keys has the values in `DEFAULT`."""

    def do(self, job: Job) -> End:
        if job.number is not None:
            return super().do(job)
        (training,) = job.trainings
        written = dict(line.split("=", 1) for line in training.overrides)
        params = {key: float(written.get(key, value)) for key, value in DEFAULT.items()}
        if written["seed"] == self.fails:
            return End("failed", "the disk is full")
        for number in range(len(training.scores) + 1, EVALUATIONS + 1):
            evaluate(training, params, number)
        return End("over")

    fails = ""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of registered run directories; databases are in memory."""
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    monkeypatch.setattr(study_module, "open_storage", lambda url: storages.setdefault(url, memory()))
    registered_paths: list[Path] = []

    def register(run: RunDirectory) -> dict[str, Any]:
        registered_paths.append(run.path)
        return {"name": "m", "version": 1}

    monkeypatch.setattr(winner, "change_run", lambda run, overrides: None)
    monkeypatch.setattr(winner, "register_model", register)
    return registered_paths


def finished_sweep(folder: Path, name: str, *overrides: str) -> Sweep:
    few = ["sweep.trials=8", "sweep.sampler=random", "sweep.pruner=none"]
    return drive(make_sweep(folder, name, *few, *overrides)[0])


def run_confirmation(sweep: Sweep, fails: str = "") -> dict[str, Any]:
    sweep.executor = executor = ConfirmingExecutor(sweep, 3, 0)
    executor.fails = fails
    for job in confirm(sweep):
        executor.start(job)
    verdict(sweep)
    return json.loads(sweep.folder.confirmed.read_text()) if sweep.folder.confirmed.exists() else {}


def test_confirmed_winner_registers_best_run(tmp_path: Path, registered: list[Path]) -> None:
    sweep = finished_sweep(tmp_path, "good", "sweep.confirm_seeds=10")
    best = sweep.study.best()
    assert best is not None
    found = run_confirmation(sweep)
    assert (found["better"], found["trial"], found["model"]["version"]) == (True, best.number, 1)
    fresh = sweep.study.seeds(CONFIRMATION, 10)
    assert found["seeds"] == fresh and len(set(fresh)) == 10
    assert not set(fresh) & set(sweep.study.seeds(TRAINING, 1))  # seeds that no trial used
    for side in (f"winner_{best.number:04d}", "default"):
        assert {path.name for path in (sweep.runs / side).iterdir()} == {f"seed_{seed}" for seed in fresh}
    values = dict(zip(fresh, found["values"]["winner"], strict=True))
    assert registered == [sweep.runs / f"winner_{best.number:04d}" / f"seed_{max(values, key=values.__getitem__)}"]


def test_unconfirmed_winner_is_not_registered(
    tmp_path: Path, registered: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default configuration equals the winner, so the difference is noise."""
    sweep = finished_sweep(tmp_path, "luck", "sweep.confirm_seeds=10")
    best = sweep.study.best()
    assert best is not None
    monkeypatch.setitem(DEFAULT, "algo.optimizer.lr", best.params["algo.optimizer.lr"])
    monkeypatch.setitem(DEFAULT, "algo.update_epochs", best.params["algo.update_epochs"])
    found = run_confirmation(sweep)
    assert found["better"] is False and found["words"].endswith("] contains 0")
    assert found["model"] is None and registered == []


def test_confirm_without_seeds_trains_nothing(tmp_path: Path, registered: list[Path]) -> None:
    sweep = finished_sweep(tmp_path, "off", "sweep.confirm_seeds=0")
    assert run_confirmation(sweep) == {} and not (sweep.runs / "default").exists()


def test_interrupted_confirmation_trains_only_missing_runs(tmp_path: Path, registered: list[Path]) -> None:
    sweep = finished_sweep(tmp_path, "again", "sweep.confirm_seeds=10")
    seed = sweep.study.seeds(CONFIRMATION, 10)[4]
    with pytest.raises(RunError, match="the confirmation of the winner failed: .*the disk is full"):
        run_confirmation(sweep, fails=str(seed))
    assert not sweep.folder.confirmed.exists() and registered == []
    assert run_confirmation(sweep)["better"] is True
    logs = list(sweep.runs.glob("winner_*/seed_*/events.jsonl")) + list(sweep.runs.glob("default/seed_*/events.jsonl"))
    assert len(logs) == 20
    assert all(log.read_text().count('"kind": "evaluation"') == EVALUATIONS for log in logs)

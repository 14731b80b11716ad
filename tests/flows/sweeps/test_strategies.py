"""Samplers and pruners of sweeps on a known score function."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from flows.sweeps import study as study_module
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.plan import plan
from tests.flows.sweeps.fake import EVALUATIONS, PACE, drive, make_sweep, trial_results
from tests.soaking import always, heavy

pytestmark = heavy

BEST = {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 5}  # optimum of tests.flows.sweeps.fake.score


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    monkeypatch.setattr(study_module, "open_storage", lambda url: storages.setdefault(url, memory()))
    yield


def distance(params: dict[str, Any]) -> float:
    """Return the distance to the optimum, in decades of the learning rate."""
    return abs(math.log10(params["algo.optimizer.lr"] / BEST["algo.optimizer.lr"]))


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_model_based_sampler_beats_random_search(tmp_path: Path, sampler: str) -> None:
    overrides = ["sweep.trials=24", "sweep.batch=1", "sweep.workers=1", "sweep.startup=6", "sweep.pruner=none"]
    sweep = drive(make_sweep(tmp_path, sampler, *overrides, f"sweep.sampler={sampler}")[0], places=1)
    params = [trial.params for trial in sweep.study.trials]
    assert len({str(drawn) for drawn in params}) == 24
    late = sorted(distance(drawn) for drawn in params[12:])
    assert late[len(late) // 2] < 0.7  # for a uniform distribution over four decades the median is 1
    again = drive(make_sweep(tmp_path, f"{sampler}_again", *overrides, f"sweep.sampler={sampler}")[0], places=1)
    assert trial_results(again) == trial_results(sweep)


def test_tpe_avoids_failed_parameters(tmp_path: Path) -> None:
    """Nine epochs always fail. Optuna ignores failed trials: 11 of these 40 trials would have nine, mostly in a row."""
    overrides = ["sweep.trials=40", "sweep.batch=1", "sweep.workers=1", "sweep.startup=6", "sweep.pruner=none"]
    sweep = drive(make_sweep(tmp_path, "fails", *overrides)[0], places=1)
    states = [trial.state.name for trial in sweep.study.trials]
    assert 1 <= states.count("FAIL") <= 4


def test_random_sampler_is_uniform_in_log_space(tmp_path: Path) -> None:
    overrides = ["sweep.trials=100", "sweep.sampler=random", "sweep.pruner=none"]
    decades = [
        math.log10(trial.params["algo.optimizer.lr"])
        for trial in drive(make_sweep(tmp_path, "random", *overrides)[0]).study.trials
    ]
    counts = [sum(low <= decade < low + 1 for decade in decades) for low in (-5, -4, -3, -2)]
    assert sum(counts) == 100
    assert min(counts) >= 12, counts  # 25 expected; fewer than 12 with probability 0.001


@always
def test_grid_sampler_tries_each_point_once(tmp_path: Path) -> None:
    grid = ["algo.optimizer.lr=choice(1e-4,1e-3,1e-2)", "algo.update_epochs=choice(3,5)"]
    overrides = ["exp=ppo", "sweep.name=grid", "sweep.trials=50", "sweep.sampler=grid", "sweep.pruner=none"]
    folder = SweepFolder("grid")
    folder.write(replace(plan([*grid, *overrides]), pace=PACE), tmp_path)
    sweep = drive(folder)
    points = {(trial.params["algo.optimizer.lr"], trial.params["algo.update_epochs"]) for trial in sweep.study.trials}
    assert len(sweep.study.trials) == len(points) == 6
    best = sweep.study.best()
    assert best is not None and sweep.study.params(best.number) == BEST


@pytest.mark.parametrize("pruner", ["median", "halving", "hyperband"])
def test_pruner_ends_worse_trials(tmp_path: Path, pruner: str) -> None:
    overrides = ["sweep.trials=30", "sweep.sampler=random", "sweep.startup=4", f"sweep.pruner={pruner}"]
    overrides += ["sweep.warmup=0"] if pruner == "median" else []
    sweep = drive(make_sweep(tmp_path, pruner, *overrides)[0])
    pruned = [trial for trial in sweep.study.trials if trial.state.name == "PRUNED"]
    whole = [trial for trial in sweep.study.trials if trial.state.name == "COMPLETE"]
    assert pruned and whole
    assert all(len(trial.intermediate_values) < EVALUATIONS for trial in pruned)
    # The median complete trial is better than the median pruned one.
    middle = [sorted(distance(t.params) for t in group)[len(group) // 2] for group in (whole, pruned)]
    assert middle[0] < middle[1]
    again = drive(make_sweep(tmp_path, f"{pruner}_again", *overrides)[0], places=2, seed=5)
    assert trial_results(again) == trial_results(sweep)  # independent of the order of workers


def test_pruner_none_completes_every_trial(tmp_path: Path) -> None:
    sweep = drive(make_sweep(tmp_path, "none", "sweep.trials=12", "sweep.startup=2", "sweep.pruner=none")[0])
    assert {trial.state.name for trial in sweep.study.trials} <= {"COMPLETE", "FAIL"}


def test_study_report_during_read_is_not_lost(tmp_path: Path) -> None:
    """The driver reads in one thread while jobs report in others; a later read must contain these reports."""
    folder, _ = make_sweep(
        tmp_path, "race", "sweep.trials=8", "sweep.mode=async", "sweep.pruner=median", "sweep.startup=1"
    )
    study = Sweep(folder, folder.read()).study
    first, second = study.ask(), study.ask()
    assert first is not None and second is not None
    read, reports = study._study.get_trials, []

    def slowly(deepcopy: bool = True) -> Any:
        found = read(deepcopy=True)
        if threading.current_thread() is threading.main_thread() and not reports:
            reports.append(threading.Thread(target=study.report, args=(second, 1, -1.0)))
            reports[0].start()
            reports[0].join(0.3)  # either the report waits, or the read data is outdated now
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study._study, "get_trials", slowly)
        study._trials = None
        assert len(study.trials) == 2
        reports[0].join()
        assert study.trials[second].intermediate_values == {1: -1.0}

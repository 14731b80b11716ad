"""Driver of a sweep: in batch mode, trials depend only on the seed, not on workers or kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from flows.sweeps import study as study_module
from flows.sweeps.driving import Sweep, trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import read_reports, trainings
from tests.flows.sweeps.fake import EVALUATIONS, PACE, FakeExecutor, drive, evaluate, make_sweep, trial_results

BATCHES = ["sweep.trials=12", "sweep.batch=3", "sweep.startup=3", "sweep.warmup=0", "sweep.confirm_seeds=0"]


class Killed(BaseException):
    """Stands for a kill of the driver process."""


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return databases in memory by address; they outlive a killed driver."""
    storages: dict[str, Any] = {}

    def open_storage(url: str) -> Any:
        return storages.setdefault(url, optuna.storages.InMemoryStorage())

    monkeypatch.setattr(study_module, "open_storage", open_storage)
    return storages


def test_batch_trials_are_independent_of_worker_order(tmp_path: Path) -> None:
    sweeps = [
        drive(make_sweep(tmp_path, f"order{seed}", *BATCHES)[0], places, seed)
        for seed, places in enumerate((1, 3, 3, 2))
    ]
    first = trial_results(sweeps[0])
    assert [trial[0] for trial in first] == list(range(12))
    assert {state for _, state, *_ in first} >= {"COMPLETE", "PRUNED"}
    for other in sweeps[1:]:
        assert trial_results(other) == first


def test_sweep_seed_changes_trials(tmp_path: Path) -> None:
    one, other = (drive(make_sweep(tmp_path, f"seed{s}", *BATCHES, f"sweep.seed={s}")[0]) for s in (1, 2))
    assert not {str(t[2]) for t in trial_results(one)} & {str(t[2]) for t in trial_results(other)}


def test_trials_never_repeat_parameters(tmp_path: Path) -> None:
    drawn = [str(trial[2]) for trial in trial_results(drive(make_sweep(tmp_path, "once", *BATCHES)[0]))]
    assert len(set(drawn)) == len(drawn)


def test_tpe_uses_results_of_earlier_batches(tmp_path: Path) -> None:
    """Random search ignores earlier results, so its parameters must differ from those of `tpe`."""
    random_draws, modelled = (
        [t[2] for t in trial_results(drive(make_sweep(tmp_path, s, *BATCHES, f"sweep.sampler={s}")[0]))]
        for s in ("random", "tpe")
    )
    assert random_draws[:3] == modelled[:3]  # the first batch has no earlier results
    assert all(a != b for a, b in zip(random_draws[3:], modelled[3:], strict=True))


def storage_calls(storage: Any, at: int | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the writes to a database; kill the driver before (even `at`) or after (odd `at`) write `at // 2`."""
    calls: list[str] = []

    def watched(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if at == 2 * len(calls) - 2:
                raise Killed
            result = write(*args, **kwargs)
            if at == 2 * len(calls) - 1:
                raise Killed
            return result

        return call

    with monkeypatch.context() as patch:
        for name in (
            "create_new_trial",
            "set_trial_intermediate_value",
            "set_trial_user_attr",
            "set_trial_system_attr",
            "set_trial_state_values",
        ):
            patch.setattr(storage, name, watched(name, getattr(storage, name)))
        yield calls


@pytest.mark.parametrize(
    ("pruner", "every"), [("median", 3), ("hyperband", 11)]
)  # hyperband stores attributes of its own
def test_driver_killed_at_any_write_resumes_identically(
    tmp_path: Path, databases: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pruner: str, every: int
) -> None:
    few = [*BATCHES, "sweep.trials=6", "sweep.batch=2", f"sweep.pruner={pruner}"]
    left_out = ("sweep.trials=12", "sweep.batch=3", *(["sweep.warmup=0"] if pruner != "median" else []))
    few = [line for line in few if line not in left_out]
    expected = trial_results(drive(make_sweep(tmp_path, "whole", *few)[0], 2))
    storage = databases.setdefault(
        SweepFolder("counted").storage(make_sweep(tmp_path, "counted", *few)[1]), new_storage()
    )
    for calls in storage_calls(storage, None, monkeypatch):
        drive(SweepFolder("counted"), 2)
        writes = len(calls)
    assert writes > 30
    for at in range(0, 2 * writes, every):  # kills before and after writes of all kinds
        name = f"killed{at}"
        folder, plan = make_sweep(tmp_path, name, *few)
        storage = databases.setdefault(folder.storage(plan), new_storage())
        for _ in storage_calls(storage, at, monkeypatch):
            with pytest.raises(Killed):
                drive(folder, 2, seed=at)
        again = drive(folder, 2, seed=at + 1)
        assert trial_results(again) == expected, at


def new_storage() -> Any:
    return optuna.storages.InMemoryStorage()


def test_async_mode_keeps_every_worker_busy(tmp_path: Path) -> None:
    """Three trials run until no further trial is left."""

    def count_idle(name: str, mode: str) -> int:
        overrides = [line for line in BATCHES if mode == "batch" or line != "sweep.batch=3"]
        folder, _ = make_sweep(tmp_path, name, *overrides, f"sweep.mode={mode}")
        sweep = Sweep(folder, folder.read())
        sweep.executor = executor = FakeExecutor(sweep, 3, 0)
        idle = 0
        wait = executor.wait

        def counted() -> Any:
            nonlocal idle
            idle += executor.free and len(executor.started) < 12
            return wait()

        executor.wait = counted  # type: ignore[method-assign]
        for job in trials(sweep):
            executor.start(job)
        assert len(executor.started) == 12
        return idle

    assert count_idle("async", "async") == 0
    assert count_idle("batch", "batch") > 0


def test_failed_trial_stores_message_and_sweep_continues(tmp_path: Path) -> None:
    sweep = drive(make_sweep(tmp_path, "fails", "sweep.trials=25", "sweep.sampler=random", "sweep.pruner=none")[0])
    failed = [trial for trial in sweep.study.trials if trial.state.name == "FAIL"]
    assert failed and len(sweep.study.trials) == 25
    assert {trial.user_attrs["sentence"] for trial in failed} == {"nine is too many"}
    assert {trial.params["algo.update_epochs"] for trial in failed} == {9}


def test_extended_sweep_matches_longer_sweep(tmp_path: Path) -> None:
    whole = trial_results(drive(make_sweep(tmp_path, "long", *BATCHES)[0]))
    shorter = [line.replace("trials=12", "trials=6") for line in BATCHES]
    drive(make_sweep(tmp_path, "short", *shorter)[0])
    assert trial_results(drive(make_sweep(tmp_path, "short", *BATCHES)[0])) == whole


def test_trial_value_is_iqm_over_seeds(tmp_path: Path) -> None:
    few = ["sweep.trials=1", "sweep.seeds=5", "sweep.last=2", "sweep.pruner=none", "sweep.seed=3"]
    sweep = drive(make_sweep(tmp_path, "seeds", *few)[0])
    (trial,) = sweep.study.trials
    runs = sweep.job(0).trainings
    assert len({run.run_dir for run in runs}) == 5
    by_hand = sorted(sum(run.scores[-2:]) / 2 for run in runs)[1:-1]
    assert trial.value == pytest.approx(sum(by_hand) / 3)


def test_read_reports_omits_last_evaluation_of_finished_training(tmp_path: Path) -> None:
    runs = trainings(tmp_path, [], [1, 2], "g")
    params = {"algo.optimizer.lr": 1e-3, "algo.update_epochs": 5}
    for number in range(1, EVALUATIONS + 1):
        evaluate(runs[0], params, number)
    for number in (1, 2):
        evaluate(runs[1], params, number)
    steps = [step for step, _ in read_reports(runs, PACE)]
    assert steps == [1000, 2000, 3000, 5000, 6000]  # without 4000, the end of the first training
    assert [score for _, score in read_reports(runs, PACE)][:2] == runs[0].scores[:2]


def test_pruner_may_end_trial_in_second_seed(tmp_path: Path) -> None:
    """The pruner compares trials at equal policy steps, summed over the trainings of a trial."""
    few = [*BATCHES, "sweep.seeds=2"]
    trials = drive(make_sweep(tmp_path, "two", *few)[0]).study.trials
    pruned = [len(trial.intermediate_values) for trial in trials if trial.state.name == "PRUNED"]
    whole = [len(trial.intermediate_values) for trial in trials if trial.state.name == "COMPLETE"]
    assert set(whole) == {2 * (EVALUATIONS - 1)}
    assert pruned and max(pruned) < max(whole) + 1

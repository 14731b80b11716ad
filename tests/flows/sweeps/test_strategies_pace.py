"""Pruners compare trials with long and short iterations by policy steps, not by number of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest

from flows.sweeps import study as study_module
from flows.sweeps.creating import check_plan
from flows.sweeps.jobs import TrialRun, read_reports
from flows.sweeps.plan import SweepConfig, TrialIntervals, plan
from flows.sweeps.strategies import pruner_of
from flows.sweeps.study import Study
from rlcore.errors import RunError
from tests.flows.sweeps.fake import PACE, make_sweep

SHORT = [(1000, 10.0), (2000, 20.0), (3000, 30.0)]  # trial with a return of 0.01 × policy steps
LONG = [(3000, 30.0)]  # trial with iterations of 3,000 policy steps


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> None:
    storages: dict[str, Any] = {}
    memory = optuna.storages.InMemoryStorage
    monkeypatch.setattr(study_module, "open_storage", lambda url: storages.setdefault(url, memory()))


def study(folder: Path, pruner: str, *complete: list[tuple[int, float]]) -> Study:
    """Return a study with complete trials, given by their evaluations, and one more running trial."""
    overrides = [
        "sweep.mode=async",
        "sweep.sampler=random",
        "sweep.startup=1",
        "sweep.warmup=0",
        f"sweep.pruner={pruner}",
    ]
    sweep_folder, sweep_plan = make_sweep(folder, "mine", *overrides)
    made_study = Study(sweep_plan, sweep_folder.storage(sweep_plan), "mine")
    for evaluations in complete:
        number = made_study.ask()
        assert number is not None
        for steps, score in evaluations:
            made_study.report(number, steps, score)
        made_study.tell(number, "complete", evaluations[-1][1])
    assert made_study.ask() == len(complete)
    return made_study


def test_median_compares_scores_at_equal_policy_steps(tmp_path: Path) -> None:
    assert study(tmp_path, "median", SHORT).report(
        1, 3000, 25.0
    )  # below 30 at equal policy steps, above 10 at the first evaluation


def test_median_ignores_later_evaluations(tmp_path: Path) -> None:
    assert not study(tmp_path, "median", LONG).report(1, 1000, 10.0)


def test_median_interpolates_between_evaluations(tmp_path: Path) -> None:
    median_study = study(tmp_path, "median", SHORT)
    assert not median_study.report(1, 1500, 15.5)
    assert median_study.report(1, 2500, 24.5)


@pytest.mark.parametrize("warmup", [0, 2])
def test_median_warmup_is_counted_in_policy_steps(warmup: int) -> None:
    """The first evaluation after `warmup` others is at policy step `1000 * (warmup + 1)` or later."""
    median = pruner_of(SweepConfig(warmup=warmup), PACE)
    assert isinstance(median, optuna.pruners.MedianPruner)
    assert median._n_warmup_steps == 1000 * (warmup + 1)


def test_first_rung_follows_longest_iteration(tmp_path: Path) -> None:
    """With an iteration of 2,000 policy steps, scores at 2,000 are never compared with scores at 1,000."""
    halving = pruner_of(SweepConfig(pruner="halving"), TrialIntervals(1000, 2000, 4000))
    assert isinstance(halving, optuna.pruners.SuccessiveHalvingPruner)
    assert halving._min_resource == 2000
    hyperband = pruner_of(SweepConfig(pruner="hyperband", seeds=3), TrialIntervals(1000, 2000, 4000))
    assert isinstance(hyperband, optuna.pruners.HyperbandPruner)
    assert (hyperband._min_resource, hyperband._max_resource) == (2000, 12_000)


@pytest.mark.parametrize(
    ("steps", "score"),
    [
        (999, None),  # before the first evaluation
        (1000, 10.0),
        (1750, 17.5),
        (4000, 30.0),  # the last score was 30
        (4500, None),  # no evaluation of the second training yet
        (5000, 1.0),
        (8000, 2.0),
        (8001, None),
    ],
)
def test_score_at_interpolates_within_each_training(steps: int, score: float | None) -> None:
    scores = dict(PACE.read_scores([SHORT, [(1000, 1.0), (2000, 2.0)]]))
    assert PACE.score_at(scores, steps) == score


@pytest.mark.parametrize(
    ("evaluations", "count", "expected"),
    [
        (SHORT, 2, [20.0, 30.0]),
        (LONG, 2, [30.0]),
        ([(2000, 20.0), (4000, 40.0)], 2, [40.0]),  # the one before is two intervals older
        ([(2000, 20.0), (4000, 40.0)], 3, [20.0, 40.0]),
        ([(1200, 1.0), (2050, 2.0), (3900, 3.0)], 2, [2.0, 3.0]),  # due at 1,000, 2,000 and 3,000
        ([], 3, []),
    ],
)
def test_recent_selects_evaluations_by_policy_steps(
    evaluations: list[tuple[int, float]], count: int, expected: list[float]
) -> None:
    assert PACE.recent(evaluations, count) == expected


def test_trial_run_value_averages_recent_evaluations(tmp_path: Path) -> None:
    events = [
        {"kind": "evaluation", "policy_steps": steps, "final": final, "greedy": {"mean": mean}}
        for steps, final, mean in ((2000, False, 1.0), (4000, False, 5.0), (4000, True, 9.0))
    ]
    training = TrialRun(tmp_path, ())
    training.run.events.write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    assert training.evaluations() == [(2000, 1.0), (4000, 5.0)]
    assert training.value(SweepConfig(last=2), PACE) == 5.0
    assert training.value(SweepConfig(last=3), PACE) == 3.0
    assert training.value(SweepConfig(objective="final"), PACE) == 9.0


def test_trial_run_value_reads_number_from_info(tmp_path: Path) -> None:
    def greedy(mean: float, **info: float) -> dict[str, Any]:
        return {"mean": mean, "info": {name: {"mean": v, "ci95": [v, v], "episodes": 2} for name, v in info.items()}}

    events = [
        {"kind": "evaluation", "policy_steps": steps, "final": final, "greedy": result}
        for steps, final, result in (
            (1000, False, greedy(9.0, won=0.25)),
            (2000, False, greedy(7.0)),  # no episode had the number
            (3000, False, greedy(5.0, won=0.75)),
            (3000, True, greedy(3.0, won=1.0)),
        )
    ]
    training = TrialRun(tmp_path, ())
    training.run.events.write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    won = SweepConfig(metric="won", objective="all")
    assert training.evaluations(won.quantity) == [(1000, 0.25), (3000, 0.75)]
    assert training.value(won, PACE) == 0.5
    assert training.value(SweepConfig(metric="won", objective="final"), PACE) == 1.0
    assert training.value(SweepConfig(metric="won", last=1), PACE) == 0.75
    assert [*read_reports([training], PACE, won.quantity)] == [(1000, 0.25), (3000, 0.75)]
    assert training.value(SweepConfig(objective="all"), PACE) == 7.0
    with pytest.raises(RunError, match=r"no evaluation with lost in info.*sweep.metric=lost"):
        training.value(SweepConfig(metric="lost"), PACE)


def test_metric_of_callback_judges_trials(tmp_path: Path) -> None:
    def logged(method: str, steps: int, **values: float) -> dict[str, Any]:
        return {"kind": "callback", "policy_steps": steps, "method": method, "values": {"Mine/best": 9.0} | values}

    def evaluated(steps: int) -> dict[str, Any]:
        greedy = {"mean": 5.0, "returns": [5.0]}
        return {"kind": "evaluation", "policy_steps": steps, "final": False, "greedy": greedy}

    best = "Mine/best"
    events = [
        logged("on_checkpoint", 1000),
        evaluated(1000),
        logged("on_evaluation", 1000, **{best: 0.5}),
        evaluated(2000),
        logged("on_evaluation", 2000, **{best: 1.5}),
        logged("on_evaluation", 2000, **{best: 1.5}),  # after a kill, a call happens again
        evaluated(3000),  # killed before the call
        logged("on_end", 3000),
    ]
    training = TrialRun(tmp_path, ())
    training.run.events.write_text("".join(json.dumps({"time": 0.0, **event}) + "\n" for event in events))
    config = SweepConfig(metric=best, objective="all")
    assert training.evaluations(config.quantity) == [(1000, 0.5), (2000, 1.5)]
    assert training.value(config, PACE) == 1.0
    with pytest.raises(RunError, match=r"no evaluation with Mine/bst in info or from a callback"):
        training.value(SweepConfig(metric="Mine/bst"), PACE)


def test_check_plan_notes_iterations_longer_than_evaluation_interval() -> None:
    wide = ["env.num_envs=choice(4,32)", "algo.rollout_steps=choice(16,128)", "algo.total_steps=16384"]
    pace = check_plan(plan(["exp=ppo", *wide])).pace
    assert (pace.every, pace.longest, pace.budget) == (1638, 32 * 128, 16384)  # no tried point has both maxima
    assert pace.notice is not None
    assert "evaluation.every=1638" in pace.notice and pace.notice.endswith("evaluation.every=4096")
    assert check_plan(plan(["exp=ppo", *wide, "evaluation.every=4096"])).pace.notice is None

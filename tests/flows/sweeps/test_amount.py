"""Number of runs and estimated time of a sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flows.config.compose import compose
from flows.sweep import amount, speed_of
from flows.sweeps.plan import TrialIntervals, plan
from rlcore.store.directory import write_json
from tests.flows.compare.runs import finished_run

VARIED = ["exp=ppo", "algo.gamma=interval(0.9,1)", "sweep.trials=7", "sweep.seeds=2", "sweep.confirm_seeds=3"]
PACE = TrialIntervals(every=100, longest=64, budget=1000)


def test_amount_counts_remaining_runs() -> None:
    assert amount(plan(VARIED), PACE) == (
        "7 trials on 2 seeds each + 6 confirmation runs: "
        "20 runs of 1,000 policy steps, at most 20,000 policy steps in total"
    )
    # 2 trials × 2 seeds + 6 = 10 runs; 10 × 1000 / 50 = 200 s, with two workers 100 s.
    text = amount(plan(VARIED), PACE, ended=5, speed=50.0)
    assert text.endswith(
        "10 runs of 1,000 policy steps, at most 10,000 policy steps in total; estimated training time 1:40 (min:s) "
        "with 2 runs at a time at 50 policy steps/s each (median of earlier runs), "
        "not including evaluations and startup"
    )
    assert "; estimated training time 1:40:00 (h:min:s) with" in amount(plan(VARIED), PACE, ended=5, speed=50 / 60)


def test_amount_of_extended_trials_counts_additional_steps() -> None:
    text = amount(plan(VARIED), dataclasses.replace(PACE, done=400), ended=5, speed=50.0)
    # 10 runs × 600 / 50 = 120 s, with two workers 60 s.
    assert "10 runs of 600 policy steps after the 400 of the extended run, at most 6,000 policy steps in total" in text
    assert "estimated training time 1:00 (min:s)" in text


def test_amount_without_confirmation_counts_trials_only() -> None:
    single_trial = plan(["exp=ppo", "algo.gamma=interval(0.9,1)", "sweep.trials=1", "sweep.confirm_seeds=0"])
    assert amount(single_trial, PACE) == "1 trial: 1 run of 1,000 policy steps, at most 1,000 policy steps in total"


def test_speed_of_is_median_of_similar_runs(tmp_path: Path) -> None:
    config, _ = compose(["exp=ppo", f"log_root={tmp_path}"])
    assert speed_of(config, tmp_path / "sweeps/mine") is None
    for name, env, speed in (("a", "CartPole-v1", 100.0), ("b", "CartPole-v1", 300.0), ("c", "Acrobot-v1", 9.0)):
        run = finished_run(tmp_path / "ppo" / env / name, None, 0, 1.0, env=env)
        write_json(run.summary, {"status": "finished", "policy_steps_per_s": speed})
    assert speed_of(config, tmp_path / "sweeps/mine") == 200.0
    own = finished_run(tmp_path / "sweeps/mine/trial_0000/seed_1", "mine", 1, 1.0)
    write_json(own.summary, {"status": "finished", "policy_steps_per_s": 70.0})
    assert speed_of(config, tmp_path / "sweeps/mine") == 70.0

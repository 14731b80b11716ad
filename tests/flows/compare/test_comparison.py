"""Comparisons of synthetic runs: selected runs, statistics, verdicts."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from flows.compare import statistics
from flows.compare.curves import against_budget, against_steps, against_time
from flows.compare.pairs import Pair
from flows.compare.result import ALL
from flows.compare.verdict import as_json, verdict
from rlcore.errors import UserError
from rlcore.store.events import EventLog
from rlcore.store.series import CPU, WALL
from tests.flows.compare.conftest import Compared
from tests.flows.compare.runs import WHOLE, finished_run, group_of
from tests.soaking import always, heavy

pytestmark = heavy

LOW = [100.0, 120.0, 90.0, 110.0, 105.0, 95.0, 115.0, 130.0, 85.0, 100.0]
HIGH = [value + 60 + 3 * (-1) ** seed for seed, value in enumerate(LOW)]


def assert_obstacles(comparison, *parts: str) -> None:
    """Check that the comparison is not ranked, for as many reasons as parts, each with one part in its sentence."""
    found = verdict(comparison)
    assert not found.ranked and found.best is None
    for part in parts:
        assert any(part in sentence for sentence in comparison.selection.obstacles), (
            part,
            comparison.selection.obstacles,
        )
    assert len(comparison.selection.obstacles) == len(parts)


@always
def test_verdict_names_significantly_better_side(root: Path, compared: Compared) -> None:
    group_of(root, "low", LOW)
    group_of(root, "high", HIGH)
    comparison = compared("low", "high")
    found = verdict(comparison)
    assert found.ranked and found.best == "high" and found.commands == []
    assert found.headline == "high is significantly better than low on CartPole-v1."
    assert comparison.aggregates["CartPole-v1"]["low"]["iqm"].value == pytest.approx(scipy.stats.trim_mean(LOW, 0.25))
    (pair,) = comparison.pairs
    u = scipy.stats.mannwhitneyu(LOW, HIGH).statistic
    assert pair.improvement.value == pytest.approx(u / 100)
    assert pair.paired and pair.correlation == pytest.approx(np.corrcoef(LOW, HIGH)[0, 1])
    assert pair.difference.high < 0 and pair.better == pair.upright().better == "high"
    assert verdict(compared("high", "low")).best == "high"  # independent of the order


@always
def test_verdict_names_no_best_without_significant_difference(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", LOW[::-1])
    found = verdict(compared("one", "two"))
    assert found.ranked and found.best is None
    assert found.headline == "one and two do not differ significantly on CartPole-v1."


def test_verdict_names_no_best_of_equal_sides(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, [500.0] * 10)
    comparison = compared("one", "two")
    assert verdict(comparison).best is None
    assert comparison.pairs[0].improvement == (0.5, 0.5, 0.5)
    assert comparison.aggregates["CartPole-v1"]["one"]["optimality_gap"].value == 0.0


def test_compare_corrects_level_for_three_sides(root: Path, compared: Compared) -> None:
    for name, shift in (("a", 0), ("b", 60), ("c", 120)):
        group_of(root, name, [value + shift for value in LOW])
    comparison = compared("a", "b", "c")
    assert comparison.level == pytest.approx(1 - 0.05 / 3)
    assert verdict(comparison).best == "c"
    for task in comparison.aggregates.values():
        assert set(task) == {"a", "b", "c"}


def test_compare_proposes_missing_seeds_of_other_side(root: Path, compared: Compared) -> None:
    group_of(root, "many", LOW, first_seed=20)
    group_of(root, "few", LOW[:8], first_seed=20)
    group_of(root, "none", [1.0], first_seed=1)
    comparison = compared("many", "few", "none")
    assert_obstacles(comparison, "few has 8 finished seeds", "none has 1 finished seed;")
    found = verdict(comparison)
    assert any("ten" in sentence for sentence in found.sentences)
    assert found.commands == [
        "shepherd train exp=ppo env.id=CartPole-v1 seed=28,29 group=few",
        "shepherd train exp=ppo env.id=CartPole-v1 seed=20,21,22,23,24,25,26,27,28 group=none",
    ]


def test_compare_proposes_group_for_runs_without_group(root: Path, compared: Compared) -> None:
    for seed, value in enumerate(LOW):
        finished_run(root / f"full/full_{seed}", None, seed, value)
        if seed < 8:
            finished_run(root / f"my part/part_{seed}", None, seed, value)
    train = "shepherd train exp=ppo env.id=CartPole-v1"
    assert compared("runs/full", "runs/my part").selection.commands == [
        f"{train} seed=8,9 group=my-part 'log_root=runs/my part'"
    ]
    # A glob would not find new runs, so a new group with all seeds is proposed.
    assert compared("runs/full", "runs/my*/*").selection.commands == [
        f"{train} seed=0,1,2,3,4,5,6,7,8,9 group=runs-my",
        "shepherd compare runs/full runs-my",
    ]


def test_compare_proposes_no_seeds_for_different_budgets(root: Path, compared: Compared) -> None:
    group_of(root, "short", LOW[:8])
    group_of(root, "long", LOW[:8], steps=2 * WHOLE)
    comparison = compared("short", "long")
    assert_obstacles(comparison, "compare runs with the same budget", "short has 8 finished", "long has 8 finished")
    assert verdict(comparison).headline.endswith(" (2 more reasons are listed below and on the page).")
    assert comparison.selection.commands == []


def test_compare_proposes_resume_before_new_seeds(root: Path, compared: Compared) -> None:
    group_of(root, "full", LOW)
    group_of(root, "part", LOW[:8])
    finished_run(root / "cut", "part", 8, 50.0, status="interrupted")
    finished_run(root / "gone", "part", 9, 50.0, status=None, final=False)
    comparison = compared("full", "part")
    assert_obstacles(comparison, "part has 8 finished seeds")
    assert "part: 1 run excluded (state: interrupted)." in comparison.notes
    assert "part: 1 run excluded (state: broken off)." in comparison.notes
    assert comparison.selection.commands == ["shepherd resume runs/cut", "shepherd resume runs/gone"]
    assert comparison.values["part"]["CartPole-v1"].tolist() == LOW[:8]
    with (root / "gone/.driver").open("w") as driver:  # a driver holds it now
        fcntl.flock(driver, fcntl.LOCK_EX)
        assert "part: 1 run excluded (state: training)." in compared("full", "part").notes


def test_compare_counts_resumed_finished_run_as_finished(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        for run in group_of(root, name, LOW):
            EventLog(run.events).append("resume", policy_steps=WHOLE)
    assert verdict(compared("one", "two")).ranked


def test_verdict_refuses_ranking_with_failed_run(root: Path, compared: Compared) -> None:
    group_of(root, "whole", LOW)
    group_of(root, "broken", HIGH)
    finished_run(root / "nan", "broken", 10, 5.0, status="failed")
    assert_obstacles(compared("whole", "broken"), "broken has 1 run that failed (runs/nan)")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_verdict_refuses_ranking_with_nonfinite_returns(value: float, root: Path, compared: Compared) -> None:
    group_of(root, "whole", LOW)
    group_of(root, "odd", HIGH)
    run = finished_run(root / "blown", "odd", 10, 5.0)
    run.events.write_text(run.events.read_text().replace('"mean": 5.0', f'"mean": {json.dumps(value)}'))
    comparison = compared("whole", "odd")
    assert_obstacles(comparison, "odd has 1 run with returns that are not finite (runs/blown)")
    json.dumps(as_json(comparison, verdict(comparison)), allow_nan=False)
    assert not verdict(comparison).commands  # a resume would not change it


def test_compare_counts_repeated_seed_once(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH)
    finished_run(root / "again", "two", 3, HIGH[3])
    comparison = compared("one", "two")
    assert len(comparison.values["two"]["CartPole-v1"]) == 10
    assert "two: 1 run excluded, because of a repeated seed." in comparison.notes
    assert comparison.pairs[0].paired


def test_verdict_refuses_ranking_of_different_budgets(root: Path, compared: Compared) -> None:
    group_of(root, "short", LOW)
    group_of(root, "long", HIGH, steps=2 * WHOLE)
    assert_obstacles(
        compared("short", "long"), "The budgets on CartPole-v1 differ (algo.total_steps: short 4,096; long 8,192)"
    )


def test_verdict_refuses_ranking_of_mixed_configurations(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "mixed", HIGH[:5])
    group_of(root, "mixed", HIGH[5:], first_seed=5, algo={"optimizer": {"lr": 0.5}})
    sentence = "mixed has runs with different configurations on CartPole-v1: algo.optimizer.lr is 0.001 and 0.5"
    assert_obstacles(compared("one", "mixed"), sentence)


def test_compare_ignores_logger_and_registry_keys(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    for seed, value in enumerate(HIGH):
        logger = {"name": "csv", "tags": {"note": f"number {seed}"}}
        models = {"models": {"agent": {"model_name": f"m{seed}"}}}
        finished_run(root / str(seed), "two", seed, value, metric={"logger": logger}, model_manager=models)
    comparison = compared("one", "two")
    assert verdict(comparison).best == "two" and comparison.config == {}


def test_compare_excludes_environments_of_one_side(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, LOW)
    group_of(root, "one", LOW, env="Acrobot-v1")
    comparison = compared("one", "two")
    assert comparison.tasks == ["CartPole-v1"]
    assert any("one also has runs on Acrobot-v1" in note for note in comparison.notes)
    assert verdict(comparison).ranked


def test_compare_treats_mask_velocities_as_other_environment(root: Path, compared: Compared) -> None:
    group_of(root, "seen", LOW)
    group_of(root, "masked", LOW, settings={"mask_velocities": True})
    with pytest.raises(UserError) as error:
        compared("seen", "masked")
    assert str(error.value) == (
        "the sides have no environment in common: seen has CartPole-v1; masked has CartPole-v1 (mask_velocities=true)"
    )


def test_compare_refuses_side_without_finished_run(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    finished_run(root / "cut", "cut", 1, 1.0, status="interrupted")
    with pytest.raises(UserError, match=r"cut: none of its 1 runs is finished \(1 interrupted\)"):
        compared("one", "cut")


def test_compare_refuses_run_without_returns(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    (run,) = group_of(root, "two", [1.0], final=False)
    run.events.write_text("".join(line + "\n" for line in run.events.read_text().splitlines() if "wall_s" not in line))
    with pytest.raises(UserError, match=r"runs/two_CartPole-v1_0: this run has no evaluation and no return"):
        compared("one", "two")


def test_compare_notes_different_commits_and_machines(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    for run in group_of(root, "two", HIGH):
        run.identity.write_text(json.dumps(run.read_identity() | {"commit": "beefbeefbeef", "dirty": True}))
        machine = {"fingerprint": {"machine": {"device_name": "another"}}}
        run.summary.write_text(json.dumps(run.read_summary() | machine))
    notes = " ".join(compared("one", "two").notes)
    assert "(one: c0ffee; two: beefbeefbe+;" in notes
    assert "different machines (a processor, another)" in notes


def test_values_use_final_or_last_three_evaluations(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    for seed, run in enumerate(group_of(root, "two", LOW)):
        # The final evaluation differs from the last one in training.
        EventLog(run.events).append(
            "evaluation", policy_steps=WHOLE, final=True, greedy={"mean": 7.0 + seed, "episodes": 5}
        )
        EventLog(run.events).append("end", policy_steps=WHOLE, status="finished")
    comparison = compared("one", "two")
    assert comparison.values["two"]["CartPole-v1"].tolist() == [7.0 + seed for seed in range(10)]
    finished_run(root / "without", "two", 10, 100.0, final=False)
    comparison = compared("one", "two")
    # Evaluations at 2/4, 3/4 and 4/4 of the way from 20 to 100: 60, 80, 100.
    assert comparison.values["two"]["CartPole-v1"][-1] == pytest.approx(80.0)
    assert comparison.values["two"]["CartPole-v1"][0] == pytest.approx(80.0)  # no final evaluation is used
    assert any("1 of 21 runs have no final evaluation" in note for note in comparison.notes)


def test_scores_are_scaled_from_baseline_to_solved(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, LOW)
        group_of(
            root, name, [-value for value in LOW], env="Pendulum-v1", random=20.0
        )  # without a reward threshold in Gymnasium
    comparison = compared("one", "two")
    cart, pendulum = comparison.scales["CartPole-v1"], comparison.scales["Pendulum-v1"]
    assert (cart.low, cart.high) == (20.0, 475.0)
    assert (pendulum.low, pendulum.high) == (20.0, 21.0)  # no run is better than random: scale 1
    finished_run(root / "good", "one", 10, 220.0, env="Pendulum-v1")
    assert compared("one", "two").scales["Pendulum-v1"].score(np.array([20.0, 120.0, 220.0])).tolist() == [0, 0.5, 1]


def test_aggregates_over_environments_use_scores(root: Path, compared: Compared) -> None:
    for name, values in (("one", LOW), ("two", HIGH)):
        group_of(root, name, values)
        group_of(root, name, [value - 300 for value in values], env="Acrobot-v1", random=-500.0)
    comparison = compared("one", "two")
    # CartPole-v1 is solved at 475, Acrobot-v1 at -100: 455 and 400 above the baselines here.
    scores = np.concatenate([(np.array(LOW) - 20) / 455, (np.array(LOW) - 300 + 500) / 400])
    assert comparison.aggregates[ALL]["one"]["iqm"].value == pytest.approx(scipy.stats.trim_mean(scores, 0.25))
    assert verdict(comparison).headline == "two is significantly better than one over 2 environments."
    curve = against_budget(comparison, "one")
    assert curve is not None and (curve.x[0], curve.x[-1]) == pytest.approx((1 / 4, 1.0))


def test_verdict_lists_environments_with_opposite_differences(root: Path, compared: Compared) -> None:
    for name, cart, acrobot in (("one", HIGH, LOW), ("two", LOW, HIGH), ("three", LOW, LOW)):
        group_of(root, name, cart)
        group_of(root, name, [value - 300 for value in acrobot], env="Acrobot-v1", random=-500.0)
    comparison = compared("one", "two")
    found = verdict(comparison)
    assert found.ranked and found.best is None
    cart = "one is significantly better than two on CartPole-v1"
    acrobot = "two is significantly better than one on Acrobot-v1"
    assert found.headline == f"{acrobot}; {cart}; one and two do not differ significantly over 2 environments."
    # First the differences in returns for each environment, then the overall difference.
    different = "a significant difference: "
    starts = (f"On Acrobot-v1, {different}", f"On CartPole-v1, {different}", "Each of these intervals has level 97.5%")
    assert [s.startswith(start) for s, start in zip(found.sentences, starts, strict=False)] == [True] * 3
    assert found.sentences[3].startswith("Over all environments, no significant difference: ")
    assert "return" in found.sentences[0] and "score" in found.sentences[3]
    assert found.sentences[0].endswith("(10 runs each, in pairs of the same seed).")
    per_environment = as_json(comparison, found)["environments"]
    assert {task: pair["better"] for task, (pair,) in per_environment.items()} == {
        "CartPole-v1": "one",
        "Acrobot-v1": "two",
    }
    # The level is corrected for three pairs on two environments.
    assert compared("one", "two", "three").task_level == pytest.approx(1 - 0.05 / 6)


def test_arrivals_are_first_evaluations_at_threshold(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0, 40.0])
    group_of(root, "two", [180.0, 20.0])
    comparison = compared("one", "two", threshold=60.0)
    # From 20 to 100 in four steps, 60 is reached after two. From 20 to 180, 60 is reached after one.
    assert comparison.threshold_steps["CartPole-v1"] == {"one": [WHOLE // 2, None], "two": [WHOLE // 4, None]}
    assert compared("one", "two").thresholds == {"CartPole-v1": 475.0}


def test_compare_config_lists_only_differing_keys(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH, algo={"optimizer": {"lr": 0.5}}, exp_name="other")
    assert compared("one", "two").config == {"algo.optimizer.lr": {"one": ["0.001"], "two": ["0.5"]}}


def test_cost_is_mean_per_run(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH)
    cost = compared("one", "two").cost["CartPole-v1"]["one"]
    assert cost == pytest.approx({"policy_steps": WHOLE, "updates": 640, "wall_s": WHOLE / 1000, "cpu_s": WHOLE / 900})


def test_curves_against_steps_and_time_agree(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0] * 5 + [180.0] * 5)
    group_of(root, "two", LOW)
    comparison = compared("one", "two")
    curve = against_steps(comparison, "one", "CartPole-v1")
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (WHOLE / 4, WHOLE)
    middle = np.interp(WHOLE / 2, curve.x, curve.band.value)
    assert middle == pytest.approx((60 + 100) / 2, abs=0.5)  # halfway of 20 → 100 and of 20 → 180
    assert curve.band.low[-1] >= 100 and curve.band.high[-1] <= 180
    for name, rate in ((WALL, 1000), (CPU, 900)):
        clock = against_time(comparison, "one", "CartPole-v1", name)
        assert clock is not None
        assert (clock.x[0], clock.x[-1]) == pytest.approx((WHOLE / 4 / rate, WHOLE / rate))
        assert clock.band.value == pytest.approx(curve.band.value)


def test_against_steps_extends_early_stopped_run(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0] * 4)
    run = finished_run(root / "early", "one", 4, 500.0, status=None)
    lines = run.events.read_text().splitlines()
    run.events.write_text("\n".join(lines[:6]) + "\n")  # start, baseline, two windows and two evaluations
    EventLog(run.events).append(
        "evaluation", policy_steps=WHOLE // 2, final=True, greedy={"mean": 260.0, "episodes": 9}
    )
    EventLog(run.events).append("end", policy_steps=WHOLE // 2, status="stopped_early", reason="target_return")
    group_of(root, "two", LOW)
    curve = against_steps(compared("one", "two"), "one", "CartPole-v1")
    assert curve is not None and curve.x[-1] == WHOLE
    assert curve.band.high[-1] > 100  # the early-stopped run keeps its 260 to the end


def test_against_time_extends_fast_runs(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0] * 3)
    slow = finished_run(root / "slow", "one", 3, 100.0)
    lines = [json.loads(line) for line in slow.events.read_text().splitlines()]
    slowed = [line | ({"wall_s": 10 * line["wall_s"]} if "wall_s" in line else {}) for line in lines]
    slow.events.write_text("".join(json.dumps(line) + "\n" for line in slowed))
    group_of(root, "two", LOW)
    curve = against_time(compared("one", "two"), "one", "CartPole-v1", WALL)
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == pytest.approx(
        (WHOLE / 400, WHOLE / 100)
    )  # from the first to the last evaluation of the slow run
    assert curve.band.value[-1] == pytest.approx(100.0)
    assert curve.band.high[0] == pytest.approx(100.0)  # the other runs had ended by then


def test_against_time_requires_clock(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        for run in group_of(root, name, LOW):
            run.events.write_text(run.events.read_text().replace('"wall_s"', '"was_not_told"'))
    comparison = compared("one", "two")
    assert against_time(comparison, "one", "CartPole-v1", WALL) is None
    assert against_time(comparison, "one", "CartPole-v1", CPU) is not None
    assert against_steps(comparison, "one", "CartPole-v1") is not None


@pytest.mark.parametrize("environments", [1, 4])
def test_better_has_low_false_positive_rate(environments: int) -> None:
    """In simulated studies of equal sides, about 1 in 20 may find a difference on any environment.

    Without the correction for four environments it would be about 1 in 6.
    """
    rng, wrong, level = np.random.default_rng(5), 0, 1 - 0.05 / environments
    for _ in range(400 // environments):
        found = []
        for _ in range(environments):
            first, second = [rng.normal(size=10)], [rng.normal(size=10)]
            difference = statistics.difference(first, second, statistics.iqm, rng, False, level, 500)
            improvement = statistics.improvement(first, second, rng, False, level, 500)
            found.append(Pair("a", "b", difference, improvement, False, None).better)
        wrong += any(found)
    assert wrong / (400 // environments) < 0.09

"""Comparisons of made-up returns: what counts, what is measured, what is said."""

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


def reasons(made, *parts: str) -> None:
    """Reasons why a comparison is not ranked, in which each part stands."""
    found = verdict(made)
    assert not found.ranked and found.best is None
    for part in parts:
        assert any(part in sentence for sentence in made.selection.obstacles), (part, made.selection.obstacles)
    assert len(made.selection.obstacles) == len(parts)


@always
def test_a_side_that_is_better_beyond_the_noise_is_called_better(root: Path, compared: Compared) -> None:
    group_of(root, "low", LOW)
    group_of(root, "high", HIGH)
    made = compared("low", "high")
    found = verdict(made)
    assert found.ranked and found.best == "high" and found.commands == []
    assert found.headline == "high is significantly better than low on CartPole-v1."
    assert made.aggregates["CartPole-v1"]["low"]["iqm"].value == pytest.approx(scipy.stats.trim_mean(LOW, 0.25))
    (pair,) = made.pairs
    u = scipy.stats.mannwhitneyu(LOW, HIGH).statistic
    assert pair.improvement.value == pytest.approx(u / 100)
    assert pair.paired and pair.correlation == pytest.approx(np.corrcoef(LOW, HIGH)[0, 1])
    assert pair.difference.high < 0 and pair.better == pair.upright().better == "high"
    assert verdict(compared("high", "low")).best == "high"  # in whatever order


@always
def test_sides_within_the_noise_are_not_ranked_apart(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", LOW[::-1])
    found = verdict(compared("one", "two"))
    assert found.ranked and found.best is None
    assert found.headline == "one and two do not differ significantly on CartPole-v1."


def test_equal_sides_at_the_ceiling_cannot_be_told_apart(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, [500.0] * 10)
    made = compared("one", "two")
    assert verdict(made).best is None
    assert made.pairs[0].improvement == (0.5, 0.5, 0.5)
    assert made.aggregates["CartPole-v1"]["one"]["optimality_gap"].value == 0.0


def test_three_sides_share_the_error_and_the_best_beats_both(root: Path, compared: Compared) -> None:
    for name, shift in (("a", 0), ("b", 60), ("c", 120)):
        group_of(root, name, [value + shift for value in LOW])
    made = compared("a", "b", "c")
    assert made.level == pytest.approx(1 - 0.05 / 3)
    assert verdict(made).best == "c"
    for task in made.aggregates.values():
        assert set(task) == {"a", "b", "c"}


def test_few_seeds_are_refused_with_the_command_that_adds_the_other_sides_seeds(root: Path, compared: Compared) -> None:
    group_of(root, "many", LOW, first_seed=20)
    group_of(root, "few", LOW[:8], first_seed=20)
    group_of(root, "none", [1.0], first_seed=1)
    made = compared("many", "few", "none")
    reasons(made, "few has 8 finished seeds", "none has 1 finished seed;")
    found = verdict(made)
    assert any("ten" in sentence for sentence in found.sentences)
    assert found.commands == [
        "shepherd train exp=ppo env.id=CartPole-v1 seed=28,29 group=few",
        "shepherd train exp=ppo env.id=CartPole-v1 seed=20,21,22,23,24,25,26,27,28 group=none",
    ]


def test_runs_of_no_group_get_one_where_their_side_finds_them(root: Path, compared: Compared) -> None:
    for seed, value in enumerate(LOW):
        finished_run(root / f"full/full_{seed}", None, seed, value)
        if seed < 8:
            finished_run(root / f"my part/part_{seed}", None, seed, value)
    train = "shepherd train exp=ppo env.id=CartPole-v1"
    assert compared("runs/full", "runs/my part").selection.commands == [
        f"{train} seed=8,9 group=my-part 'log_root=runs/my part'"
    ]
    # A glob, as one run alone, finds nothing new: a group of all seeds stands for it.
    assert compared("runs/full", "runs/my*/*").selection.commands == [
        f"{train} seed=0,1,2,3,4,5,6,7,8,9 group=runs-my",
        "shepherd compare runs/full runs-my",
    ]


def test_more_seeds_are_not_proposed_where_budgets_differ(root: Path, compared: Compared) -> None:
    group_of(root, "short", LOW[:8])
    group_of(root, "long", LOW[:8], steps=2 * WHOLE)
    made = compared("short", "long")
    reasons(made, "compare runs with the same budget", "short has 8 finished", "long has 8 finished")
    assert made.selection.commands == []


def test_runs_that_did_not_end_are_said_and_resumed_before_new_seeds_are_trained(
    root: Path, compared: Compared
) -> None:
    group_of(root, "full", LOW)
    group_of(root, "part", LOW[:8])
    finished_run(root / "cut", "part", 8, 50.0, status="interrupted")
    finished_run(root / "gone", "part", 9, 50.0, status=None, final=False)
    made = compared("full", "part")
    reasons(made, "part has 8 finished seeds")
    assert "part: 1 run excluded (state: interrupted)." in made.notes
    assert "part: 1 run excluded (state: broken off)." in made.notes
    assert made.selection.commands == ["shepherd resume runs/cut", "shepherd resume runs/gone"]
    assert made.values["part"]["CartPole-v1"].tolist() == LOW[:8]
    with (root / "gone/.driver").open("w") as lead:  # somebody leads it now
        fcntl.flock(lead, fcntl.LOCK_EX)
        assert "part: 1 run excluded (state: training)." in compared("full", "part").notes


def test_a_finished_run_whose_last_stages_were_done_again_is_finished(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        for run in group_of(root, name, LOW):
            EventLog(run.events).append("resume", policy_steps=WHOLE)
    assert verdict(compared("one", "two")).ranked


def test_a_run_that_failed_is_a_result_that_is_not_left_out_in_silence(root: Path, compared: Compared) -> None:
    group_of(root, "whole", LOW)
    group_of(root, "broken", HIGH)
    finished_run(root / "nan", "broken", 10, 5.0, status="failed")
    reasons(compared("whole", "broken"), "broken has 1 run that failed (runs/nan)")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_whose_returns_are_not_finite_is_a_result_that_is_not_left_out_in_silence(
    value: float, root: Path, compared: Compared
) -> None:
    group_of(root, "whole", LOW)
    group_of(root, "odd", HIGH)
    run = finished_run(root / "blown", "odd", 10, 5.0)
    run.events.write_text(run.events.read_text().replace('"mean": 5.0', f'"mean": {json.dumps(value)}'))
    made = compared("whole", "odd")
    reasons(made, "odd has 1 run with returns that are not finite (runs/blown)")
    json.dumps(as_json(made, verdict(made)), allow_nan=False)
    assert not verdict(made).commands  # to resume it would change nothing


def test_the_same_seed_again_counts_once_and_is_said(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH)
    finished_run(root / "again", "two", 3, HIGH[3])
    made = compared("one", "two")
    assert len(made.values["two"]["CartPole-v1"]) == 10
    assert "two: 1 run excluded, because of a repeated seed." in made.notes
    assert made.pairs[0].paired


def test_other_budgets_are_not_ranked(root: Path, compared: Compared) -> None:
    group_of(root, "short", LOW)
    group_of(root, "long", HIGH, steps=2 * WHOLE)
    reasons(compared("short", "long"), "The budgets on CartPole-v1 differ (algo.total_steps: short 4,096; long 8,192)")


def test_a_side_of_several_configurations_is_not_ranked(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "mixed", HIGH[:5])
    group_of(root, "mixed", HIGH[5:], first_seed=5, algo={"optimizer": {"lr": 0.5}})
    sentence = "mixed has runs with different configurations on CartPole-v1: algo.optimizer.lr is 0.001 and 0.5"
    reasons(compared("one", "mixed"), sentence)


def test_bookkeeping_makes_no_other_configuration(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    for seed, value in enumerate(HIGH):
        logger = {"name": "csv", "tags": {"note": f"number {seed}"}}
        models = {"models": {"agent": {"model_name": f"m{seed}"}}}
        finished_run(root / str(seed), "two", seed, value, metric={"logger": logger}, model_manager=models)
    made = compared("one", "two")
    assert verdict(made).best == "two" and made.config == {}


def test_environments_that_not_every_side_has_are_left_out_and_said(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, LOW)
    group_of(root, "one", LOW, env="Acrobot-v1")
    made = compared("one", "two")
    assert made.tasks == ["CartPole-v1"]
    assert any("one also has runs on Acrobot-v1" in note for note in made.notes)
    assert verdict(made).ranked


def test_settings_that_make_another_task_are_another_environment(root: Path, compared: Compared) -> None:
    group_of(root, "seen", LOW)
    group_of(root, "masked", LOW, settings={"mask_velocities": True})
    with pytest.raises(UserError) as told:
        compared("seen", "masked")
    assert str(told.value) == (
        "the sides have no environment in common: seen has CartPole-v1; masked has CartPole-v1 (mask_velocities=true)"
    )


def test_a_side_without_a_finished_run_is_a_sentence(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    finished_run(root / "cut", "cut", 1, 1.0, status="interrupted")
    with pytest.raises(UserError, match=r"cut: none of its 1 runs is finished \(1 interrupted\)"):
        compared("one", "cut")


def test_a_finished_run_without_any_return_is_a_sentence(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    (run,) = group_of(root, "two", [1.0], final=False)
    run.events.write_text("".join(line + "\n" for line in run.events.read_text().splitlines() if "wall_s" not in line))
    with pytest.raises(UserError, match=r"runs/two_CartPole-v1_0: this run has no evaluation and no return"):
        compared("one", "two")


def test_other_code_and_other_machines_are_said(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    for run in group_of(root, "two", HIGH):
        run.identity.write_text(json.dumps(run.read_identity() | {"commit": "beefbeefbeef", "dirty": True}))
        machine = {"fingerprint": {"machine": {"device_name": "another"}}}
        run.summary.write_text(json.dumps(run.read_summary() | machine))
    notes = " ".join(compared("one", "two").notes)
    assert "(one: c0ffee; two: beefbeefbe+;" in notes
    assert "different machines (a processor, another)" in notes


def test_the_value_is_the_final_evaluation_where_every_run_has_one_else_the_last_three(
    root: Path, compared: Compared
) -> None:
    group_of(root, "one", LOW)
    for seed, run in enumerate(group_of(root, "two", LOW)):  # the final one says other than the last while training
        EventLog(run.events).append(
            "evaluation", policy_steps=WHOLE, final=True, greedy={"mean": 7.0 + seed, "episodes": 5}
        )
        EventLog(run.events).append("end", policy_steps=WHOLE, status="finished")
    made = compared("one", "two")
    assert made.values["two"]["CartPole-v1"].tolist() == [7.0 + seed for seed in range(10)]
    finished_run(root / "without", "two", 10, 100.0, final=False)
    made = compared("one", "two")
    # Evaluations at 2/4, 3/4 and 4/4 of the way from 20 to 100: 60, 80, 100.
    assert made.values["two"]["CartPole-v1"][-1] == pytest.approx(80.0)
    assert made.values["two"]["CartPole-v1"][0] == pytest.approx(80.0)  # nobody's final evaluation is used
    assert any("1 of 21 runs have no final evaluation" in note for note in made.notes)


def test_scores_run_from_the_random_policy_to_solved_or_to_the_best_run(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        group_of(root, name, LOW)
        group_of(
            root, name, [-value for value in LOW], env="Pendulum-v1", random=20.0
        )  # Gymnasium does not say when it is solved
    made = compared("one", "two")
    cart, pendulum = made.scales["CartPole-v1"], made.scales["Pendulum-v1"]
    assert (cart.low, cart.high) == (20.0, 475.0)
    assert (pendulum.low, pendulum.high) == (20.0, 21.0)  # none does better than random: the return's own unit
    finished_run(root / "good", "one", 10, 220.0, env="Pendulum-v1")
    assert compared("one", "two").scales["Pendulum-v1"].score(np.array([20.0, 120.0, 220.0])).tolist() == [0, 0.5, 1]


def test_several_environments_are_aggregated_in_scores(root: Path, compared: Compared) -> None:
    for name, values in (("one", LOW), ("two", HIGH)):
        group_of(root, name, values)
        group_of(root, name, [value - 300 for value in values], env="Acrobot-v1", random=-500.0)
    made = compared("one", "two")
    # CartPole-v1 is solved at 475, Acrobot-v1 at -100: 455 and 400 above the random policies here.
    # CartPole-v1 is solved at 475, Acrobot-v1 at -100: 455 and 400 above the random policies here.
    scores = np.concatenate([(np.array(LOW) - 20) / 455, (np.array(LOW) - 300 + 500) / 400])
    assert made.aggregates[ALL]["one"]["iqm"].value == pytest.approx(scipy.stats.trim_mean(scores, 0.25))
    assert verdict(made).headline == "two is significantly better than one over 2 environments."
    curve = against_budget(made, "one")
    assert curve is not None and (curve.x[0], curve.x[-1]) == pytest.approx((1 / 4, 1.0))


def test_environments_on_which_sides_differ_in_opposite_ways_are_told_one_by_one(
    root: Path, compared: Compared
) -> None:
    for name, cart, acrobot in (("one", HIGH, LOW), ("two", LOW, HIGH), ("three", LOW, LOW)):
        group_of(root, name, cart)
        group_of(root, name, [value - 300 for value in acrobot], env="Acrobot-v1", random=-500.0)
    made = compared("one", "two")
    found = verdict(made)
    assert found.ranked and found.best is None
    cart = "one is significantly better than two on CartPole-v1"
    acrobot = "two is significantly better than one on Acrobot-v1"
    assert found.headline == f"{acrobot}; {cart}; one and two do not differ significantly over 2 environments."
    # The figures of each, in returns, then the whole.
    different = "a significant difference: "
    starts = (f"On Acrobot-v1, {different}", f"On CartPole-v1, {different}", "Each of these intervals has level 97.5%")
    assert [s.startswith(start) for s, start in zip(found.sentences, starts, strict=False)] == [True] * 3
    assert found.sentences[3].startswith("Over all environments, no significant difference: ")
    assert "return" in found.sentences[0] and "score" in found.sentences[3]
    assert found.sentences[0].endswith("(10 runs each, in pairs of the same seed).")
    noted = as_json(made, found)["environments"]
    assert {task: pair["better"] for task, (pair,) in noted.items()} == {"CartPole-v1": "one", "Acrobot-v1": "two"}
    # Three pairs on two environments share the error.
    assert compared("one", "two", "three").task_level == pytest.approx(1 - 0.05 / 6)


def test_steps_to_a_threshold_are_those_of_the_first_evaluation_at_or_above_it(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0, 40.0])
    group_of(root, "two", [180.0, 20.0])
    made = compared("one", "two", threshold=60.0)
    # From 20 to 100 in quarters: 60 after two of them. To 180: 60 after one.
    assert made.arrivals["CartPole-v1"] == {"one": [WHOLE // 2, None], "two": [WHOLE // 4, None]}
    assert compared("one", "two").thresholds == {"CartPole-v1": 475.0}


def test_only_what_differs_between_sides_is_listed_and_no_bookkeeping(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH, algo={"optimizer": {"lr": 0.5}}, exp_name="other")
    assert compared("one", "two").config == {"algo.optimizer.lr": {"one": ["0.001"], "two": ["0.5"]}}


def test_cost_is_the_mean_of_a_run(root: Path, compared: Compared) -> None:
    group_of(root, "one", LOW)
    group_of(root, "two", HIGH)
    cost = compared("one", "two").cost["CartPole-v1"]["one"]
    assert cost == pytest.approx({"policy_steps": WHOLE, "updates": 640, "wall_s": WHOLE / 1000, "cpu_s": WHOLE / 900})


def test_curves_go_as_far_as_every_run_and_against_the_clock_too(root: Path, compared: Compared) -> None:
    group_of(root, "one", [100.0] * 5 + [180.0] * 5)
    group_of(root, "two", LOW)
    made = compared("one", "two")
    curve = against_steps(made, "one", "CartPole-v1")
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (WHOLE / 4, WHOLE)
    middle = np.interp(WHOLE / 2, curve.x, curve.band.value)
    assert middle == pytest.approx((60 + 100) / 2, abs=0.5)  # halfway of 20 → 100 and of 20 → 180
    assert curve.band.low[-1] >= 100 and curve.band.high[-1] <= 180
    for name, rate in ((WALL, 1000), (CPU, 900)):
        clock = against_time(made, "one", "CartPole-v1", name)
        assert clock is not None
        assert (clock.x[0], clock.x[-1]) == pytest.approx((WHOLE / 4 / rate, WHOLE / rate))
        assert clock.band.value == pytest.approx(curve.band.value)


def test_a_run_that_stopped_early_keeps_its_last_value_and_shortens_no_curve(root: Path, compared: Compared) -> None:
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
    assert curve.band.high[-1] > 100  # 260 of the one that stopped, at the end too


def test_a_fast_run_keeps_its_value_while_slow_ones_train(root: Path, compared: Compared) -> None:
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
    )  # from the slow one's first to its end
    assert curve.band.value[-1] == pytest.approx(100.0)
    assert curve.band.high[0] == pytest.approx(100.0)  # by then the others had ended


def test_runs_without_a_clock_have_no_curve_against_time(root: Path, compared: Compared) -> None:
    for name in ("one", "two"):
        for run in group_of(root, name, LOW):
            run.events.write_text(run.events.read_text().replace('"wall_s"', '"was_not_told"'))
    made = compared("one", "two")
    assert against_time(made, "one", "CartPole-v1", WALL) is None
    assert against_time(made, "one", "CartPole-v1", CPU) is not None
    assert against_steps(made, "one", "CartPole-v1") is not None


@pytest.mark.parametrize("environments", [1, 4])
def test_two_equal_sides_are_seldom_ranked_by_chance(environments: int) -> None:
    """Simulated studies of two sides that do not differ: about one in twenty may name a difference on any environment.

    Without a correction for four environments it would be about one in six.
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

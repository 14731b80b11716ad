"""Stop conditions: results of rl8's conditions on stored values, missing metrics, and state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.config.stop import EVALUATION_RETURN, refuse_unknown_metrics
from rlcore.errors import RunError, UserError
from rlcore.train.metrics import SURE
from rlcore.train.stop_conditions import StopConditions, make_condition
from rlcore.train.stopping import All, LowerBound, Plateau, StopsIncreasing, UpperBound
from rlcore.train.until import Iteration, train_until

CASES = json.loads((Path(__file__).parents[2] / "golden/rl8_conditions.json").read_text())
RETURN, LOSS = "Rewards/rew_avg", "Loss/policy_loss"


def stated(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the condition of a case in the form of a config."""
    if case["name"] == "all":
        return {"all": [stated(part) for part in case["arguments"]]}
    return {case["name"]: {"metric": RETURN, **case["arguments"]}}


@pytest.mark.parametrize("name", sorted({case["name"] for case in CASES}))
def test_conditions_equal_those_of_rl8(name: str) -> None:
    for case in (case for case in CASES if case["name"] == name):
        condition = make_condition(stated(case))
        assert [condition({RETURN: value}) for value in case["values"]] == case["results"], case


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
def test_conditions_continue_from_their_state(cut: int) -> None:
    for case in CASES:
        whole, resumed = StopConditions.from_config([stated(case)]), StopConditions.from_config([stated(case)])
        for value in case["values"][:cut]:
            whole.update({RETURN: value})
        resumed.load_state_dict(json.loads(json.dumps(whole.state_dict(), allow_nan=False)), {})
        for value in case["values"][cut:]:
            assert resumed.update({RETURN: value}) == whole.update({RETURN: value}), case


def test_condition_keeps_its_result_while_metric_is_missing() -> None:
    both = All([UpperBound(EVALUATION_RETURN, 10), Plateau(RETURN, patience=2, rtol=0.1)])
    assert not both({EVALUATION_RETURN: 12})
    assert not both({RETURN: 50})
    assert not both({LOSS: 50})  # does not count as a second equal return
    assert not both({RETURN: 50})
    assert both({RETURN: 51})
    assert not both({EVALUATION_RETURN: 9})


@pytest.mark.parametrize(
    ("scores", "stops"),
    [
        ([5, 6, 6.5], True),  # 6 and 6.5 do not exceed the best value by more than 2
        ([5, 7, 9], True),  # nor do 7 and 9, because the best value is 7 then
        ([5, 7.5, 7], False),
        ([5, 4, 8], False),
    ],
)
def test_stops_increasing_ignores_improvements_up_to_min_delta(scores: list[float], stops: bool) -> None:
    condition = StopsIncreasing(RETURN, patience=2, min_delta=2)
    assert [condition({RETURN: score}) for score in scores][-1] is stops


def test_reason_describes_the_condition_that_holds() -> None:
    stop = StopConditions([LowerBound(LOSS, 0.5), All([Plateau(RETURN, 2, 0.05), UpperBound(RETURN, 90)])])
    assert stop.update({LOSS: 0.7, RETURN: 100.0}) is None
    assert stop.update({RETURN: 101.0}) is None
    expected = "plateau: Rewards/rew_avg changed by at most 5 % 2 times in a row and upper_bound: Rewards/rew_avg = 102"
    assert stop.update({RETURN: 102.0}) == f"{expected}, which is at least 90"
    assert StopConditions([LowerBound(LOSS, 0.5)]).update({LOSS: 0.25}) == (
        "lower_bound: Loss/policy_loss = 0.25, which is at most 0.5"
    )


def test_load_state_dict_reads_evaluations_after_checkpoint() -> None:
    condition = {"stops_increasing": {"metric": EVALUATION_RETURN, "patience": 2, "min_delta": 0.0}}
    before = StopConditions.from_config([condition])
    for steps, score in ((100, 5.0), (200, 4.0)):
        before.add_evaluation(steps, score)
    resumed = StopConditions.from_config([condition])
    resumed.load_state_dict(before.state_dict(), {100: 5.0, 200: 4.0})
    assert resumed.reason is None  # the evaluation at 200 counts once
    resumed.load_state_dict(before.state_dict(), {100: 5.0, 200: 4.0, 300: 3.0})
    assert resumed.reason == "stops_increasing: Evaluation/greedy_mean has not improved on 5 2 times in a row"


def test_load_state_dict_replays_evaluations_for_changed_condition() -> None:
    old = StopConditions.from_config([{"stops_increasing": {"metric": EVALUATION_RETURN, "patience": 3}}])
    scores = {100: 5.0, 200: 4.0, 300: 3.0}
    for steps, score in scores.items():
        old.add_evaluation(steps, score)
    new = StopConditions.from_config([{"stops_increasing": {"metric": EVALUATION_RETURN, "patience": 2}}])
    new.load_state_dict(old.state_dict(), scores)
    assert new.reason is not None
    assert StopConditions().state_dict() == {"names": [], "states": [], "evaluated": -1}


class AfterTwo:
    """A user's condition with a counter as its state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, metrics: Mapping[str, float]) -> bool:
        self.calls += 1
        return self.calls >= 2


def test_user_condition_continues_from_its_state() -> None:
    stop = StopConditions([AfterTwo()])
    assert stop.reads_training
    assert stop.update({RETURN: 1.0}) is None
    resumed = StopConditions([AfterTwo()])
    resumed.load_state_dict(stop.state_dict(), {})
    assert resumed.update({RETURN: 1.0}) == "AfterTwo"


def test_user_condition_failure_names_condition() -> None:
    def forgetful(metrics: Mapping[str, float]) -> bool:
        return metrics["Rewards/rew_av"] > 3

    with pytest.raises(RunError, match="stop condition function: KeyError: 'Rewards/rew_av'"):
        StopConditions([forgetful]).update({RETURN: 1.0})


def test_metric_that_is_never_reported_is_an_error() -> None:
    stop = StopConditions([UpperBound("Loss/policy_los", 1), UpperBound(RETURN, 1)])
    for updates in (1_000, 1_000 + SURE - 1):  # the first 1,000 are those of an earlier process
        stop.add_iteration({LOSS: 0.0}, policy_steps=8, env_steps=8, updates=updates)
    with pytest.raises(UserError, match=r"stop=Loss/policy_los: this training .* did you mean 'Loss/policy_loss'\?"):
        stop.add_iteration({LOSS: 0.0}, policy_steps=8, env_steps=8, updates=1_000 + SURE)


def test_unknown_metric_error_lists_each_metric_once() -> None:
    with pytest.raises(UserError) as error:
        refuse_unknown_metrics([("stop", "reward")], {LOSS, RETURN, "Game/ep_len_avg"}, "ppo")
    listed = str(error.value).partition("; metrics: ")[2].split(", ")
    assert {LOSS, RETURN, "Game/ep_len_avg"} <= set(listed) and len(listed) == len(set(listed))


def test_train_until_waits_for_policy_that_is_updated_rarely() -> None:
    """The critics are updated in every iteration, the policy in every 10th one; 1,000 updates precede the training."""

    def iteration(number: int) -> Iteration:
        policy = {LOSS: 0.5} if number % 10 == 0 else {}
        return Iteration(number, number, 1_000 + number, {"Loss/value_loss": 1.0} | policy, [])

    def run(metric: str) -> str:
        conditions = StopConditions([LowerBound(metric, 0.5)])
        return train_until(map(iteration, range(1, 31)), conditions, dict, None, None).reason

    assert run(LOSS).startswith("lower_bound: Loss/policy_loss = 0.5")
    with pytest.raises(UserError, match="stop=Loss/polic_loss: this training does not report this metric"):
        run("Loss/polic_loss")


@pytest.mark.parametrize(
    ("metrics", "reads"), [([EVALUATION_RETURN], False), ([EVALUATION_RETURN, RETURN], True), ([], False)]
)
def test_reads_training_is_false_for_evaluations(metrics: list[str], reads: bool) -> None:
    assert StopConditions([UpperBound(metric, 1) for metric in metrics]).reads_training is reads

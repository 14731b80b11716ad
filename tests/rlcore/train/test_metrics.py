from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.config.groups import AggregatorConfig, MetricConfig
from rlcore.errors import RunError, UserError
from rlcore.train.metrics import MetricsWindow, Stopwatch, check_metrics
from rlcore.types import Episode


def window(log_every: int = 100, disable_timer: bool = True, **aggregator: object) -> MetricsWindow:
    return MetricsWindow(
        MetricConfig(log_every=log_every, disable_timer=disable_timer, aggregator=AggregatorConfig(**aggregator))
    )


def test_window_close_returns_mean_and_restarts() -> None:
    one = window()
    one.add([{"Loss/value_loss": 1.0}, {"Loss/value_loss": 3.0}], [Episode(0, 10.0, 5), Episode(1, 20.0, 7)])
    one.add([{"Loss/value_loss": 5.0}], [])
    assert one.close(100, 3) == {"Loss/value_loss": 3.0, "Rewards/rew_avg": 15.0, "Game/ep_len_avg": 6.0}
    assert one.close(200, 3) == {}


@pytest.mark.parametrize(("how", "expected"), [("mean", 2.0), ("sum", 6.0), ("max", 3.0), ("min", 1.0), ("last", 2.0)])
def test_window_close_uses_chosen_reduction(how: str, expected: float) -> None:
    one = window(metrics={"Loss/value_loss": how})
    one.add([{"Loss/value_loss": v} for v in (1.0, 3.0, 2.0)], [])
    assert one.close(100, 3)["Loss/value_loss"] == expected


def test_window_close_gives_current_replay_ratio() -> None:
    for chosen, expected in (({}, 0.5), ({"Params/replay_ratio": "mean"}, 0.3)):
        one = window(metrics=chosen)
        one.add([{"Params/replay_ratio": ratio} for ratio in (0.1, 0.3, 0.5)], [])
        assert one.close(100, 3)["Params/replay_ratio"] == pytest.approx(expected)


def test_window_is_due_when_multiple_is_passed() -> None:
    one = window(log_every=100)
    due = []
    for policy_steps in (64, 128, 192, 256, 512):
        due.append(one.due(policy_steps))
        if due[-1]:
            one.close(policy_steps, 0)
    assert due == [False, True, False, True, True]


def test_speed_counts_steps_in_window() -> None:
    one = window(disable_timer=False)
    for policy_steps, updates in ((100, 10), (300, 15)):
        one.seconds["collect"] += 2.0
        one.seconds["train"] += 5.0
        point = one.close(policy_steps, updates)
    assert point == {"Time/sps_env_interaction": 100.0, "Time/sps_train": 1.0}


def test_missing_metric_is_reported_once_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    one = window(metrics={"Loss/valu_loss": "mean", "Rewards/rew_avg": "max"})
    for _ in range(2):
        one.add([{"Loss/value_loss": 1.0}], [])
        one.close(100, 20)
    assert caplog.text.count("does not log 'Loss/valu_loss' (did you mean 'Loss/value_loss'?)") == 1
    strict = window(metrics={"Loss/valu_loss": "mean", "Mine/won": "mean"}, raise_on_missing=True)
    strict.add([{"Loss/value_loss": 1.0}], [])
    named = r"'Loss/valu_loss' \(did you mean 'Loss/value_loss'\?\), 'Mine/won'$"
    with pytest.raises(UserError, match=f"does not log {named}"):
        strict.close(100, 20)


def test_window_without_updates_checks_no_metrics() -> None:
    """For example while a replay buffer fills; metrics that are logged only sometimes count as logged."""
    strict = window(metrics={"Loss/value_loss": "mean", "Loss/actor": "mean"}, raise_on_missing=True)
    strict.add([], [Episode(0, 1.0, 5)])
    assert strict.close(100, 0) == {"Rewards/rew_avg": 1.0, "Game/ep_len_avg": 5.0}
    strict.add([{"Loss/value_loss": 2.0, "Loss/actor": 4.0}], [])
    strict.close(200, 20)
    strict.add([{"Loss/value_loss": 3.0}], [])
    assert strict.close(300, 21) == {"Loss/value_loss": 3.0}


def test_first_gradient_steps_may_lack_metric() -> None:
    strict = window(metrics={"Loss/actor": "mean"}, raise_on_missing=True)
    strict.add([{"Loss/value_loss": 2.0}], [])
    strict.close(100, 2)
    strict.add([{"Loss/value_loss": 2.0, "Loss/actor": 4.0}], [])
    assert strict.close(200, 30)["Loss/actor"] == 4.0


def test_resumed_window_continues_without_repeated_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A metric that was logged once is known, and no warning is repeated."""

    def resumed(one: MetricsWindow, **aggregator: object) -> MetricsWindow:
        other = window(**aggregator)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        return other

    strict = {"metrics": {"Loss/actor": "mean"}, "raise_on_missing": True}
    one = window(**strict)
    one.add([{"Loss/value_loss": 2.0, "Loss/actor": 4.0}], [])
    one.close(100, 20)
    one = resumed(one, **strict)
    one.add([{"Loss/value_loss": 3.0}], [])
    assert one.close(200, 21) == {"Loss/value_loss": 3.0}
    lenient = {"metrics": {"Loss/missing": "mean"}}
    one = window(**lenient)
    for updates in (20, 21):
        one.add([{"Loss/value_loss": 2.0}], [])
        one.close(100 * updates, updates)
        one = resumed(one, **lenient)
    assert caplog.text.count("does not log 'Loss/missing'") == 1


def test_check_metrics_accepts_numpy_and_torch_numbers() -> None:
    one = window(metrics={"a": "last", "b": "max"})
    one.add([check_metrics({"a": np.float32(0.5), "b": np.array(2), "c": torch.tensor(3)})], [])
    assert json.loads(json.dumps(one.close(100, 1))) == {"a": 0.5, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.zeros(1), r"a Tensor of shape \[1\]"),
        (np.zeros((2, 3)), r"a ndarray of shape \[2, 3\]"),
        ("much", "'much'"),
        (None, "None"),
    ],
)
def test_check_metrics_refuses_value_that_is_no_number(value: Any, what: str) -> None:
    with pytest.raises(RunError, match=f"^metric 'Loss/q' is {what}; a metric must be a single number"):
        check_metrics({"Loss/p": 1.0, "Loss/q": value})


def test_window_resumes_to_same_values() -> None:
    one, other = window(disable_timer=False), window(disable_timer=False)
    one.add([{"x": 1.0}], [Episode(0, 2.0, 3)])
    one.seconds["train"] = 4.0
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for each in (one, other):
        each.add([{"x": 2.0}], [])
    assert (
        one.close(100, 8)
        == other.close(100, 8)
        == {"x": 1.5, "Rewards/rew_avg": 2, "Game/ep_len_avg": 3, "Time/sps_train": 2}
    )


def test_stopwatch_counts_only_while_running() -> None:
    watch = Stopwatch(wall=100.0, cpu=50.0)
    time.sleep(0.02)
    assert (watch.wall, watch.cpu) == (100.0, 50.0)
    with watch.running():
        time.sleep(0.02)
        assert watch.wall > 100.019
    stopped = watch.wall
    time.sleep(0.01)
    assert watch.wall == stopped and watch.cpu >= 50.0

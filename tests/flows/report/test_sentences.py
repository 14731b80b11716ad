"""Result of a run in one line."""

from __future__ import annotations

from typing import Any

from flows.report.sentences import describe, result_line

GREEDY = {"mean": 51.0, "ci95": [40.0, 62.0], "episodes": 2}
TRIAL: dict[str, Any] = {"eval": {"greedy": None, "stochastic": None}, "policy_steps": 2048, "model": None}


def test_result_line_of_trial_uses_last_evaluation() -> None:
    earlier = {"greedy": GREEDY | {"mean": 9.0}}
    line = result_line(TRIAL, [earlier, {"greedy": GREEDY}])
    assert (
        line == "greedy 51.0 [40.0, 62.0] over 2 episodes (last evaluation during training, no final evaluation); "
        "2,048 policy steps; not registered"
    )


def test_result_line_prefers_final_evaluation() -> None:
    finished = TRIAL | {"eval": {"greedy": GREEDY | {"mean": 480.0}, "stochastic": None}}
    assert result_line(finished, [{"greedy": GREEDY}]).startswith("greedy 480.0 [40.0, 62.0] over 2 episodes; 2,048")


def test_describe_marks_interval_beyond_returns_as_approximation() -> None:
    greedy = {"mean": 490.0, "ci95": [479.7, 500.3], "episodes": 2, "returns": [480.0, 500.0]}
    text = describe("evaluation", {"policy_steps": 4096, "greedy": greedy})
    assert text is not None and text.endswith(
        "[479.7, 500.3] over 2 episodes (normal approximation: the interval exceeds the observed returns)"
    )
    within = describe("evaluation", {"policy_steps": 4096, "greedy": greedy | {"ci95": [481.0, 499.0]}})
    assert within is not None and within.endswith("over 2 episodes")


def test_describe_adds_numbers_from_info() -> None:
    won = {"mean": 0.75, "ci95": [0.5, 1.0], "episodes": 2, "values": [0.5, 1.0]}
    text = describe("evaluation", {"policy_steps": 4096, "greedy": GREEDY | {"info": {"won": won}}})
    assert text is not None and text.endswith("greedy 51.0 [40.0, 62.0] over 2 episodes, won 0.75 [0.50, 1.00]")


def test_describe_ignores_rounding_of_equal_returns() -> None:
    """The mean of equal numbers can differ from them in the last digit."""
    equal = {"mean": 0.9299999999999998, "ci95": [0.9299999999999998] * 2, "episodes": 2, "returns": [0.93, 0.93]}
    text = describe("evaluation", {"policy_steps": 4096, "greedy": equal})
    assert text == "evaluation at 4,096 policy steps: greedy 0.93 [0.93, 0.93] over 2 episodes"


def test_describe_escapes_control_characters() -> None:
    assert describe("stage", {"doing": "\x1b[2J\u202e"}) == r"\x1b[2J\u202e"

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlcore.evaluation.play import EvalResult, playing, student_t_975
from rlcore.types import TimeStep
from tests.rlcore.envs.counting_envs import CountingEnvs
from tests.rlcore.functional.test_tree import Remembering


def play(*arguments: Any, **options: Any) -> EvalResult:
    *_, record = playing(*arguments, **options)
    return record.result()


class Still:
    def initial(self, batch_size: int) -> tuple[()]:
        return ()

    def act(self, carry: Any, obs: Any, is_first: torch.Tensor, rng: Any, greedy: bool) -> Any:
        return (), torch.zeros(len(is_first), 1, dtype=torch.int64), {}

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0]


# Tables of Student's distribution, two-sided 95 %.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 99: 1.984, 100_000: 1.960}


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_student_t_975_matches_tables(freedom: int, expected: float) -> None:
    assert student_t_975(freedom) == pytest.approx(expected, rel=2e-3)


def test_eval_result_interval_of_known_returns() -> None:
    # Returns 1, 2, 3, 4, 5: mean 3, std √2.5, 4 degrees of freedom: half width 2.776·√2.5/√5 = 1.963.
    result = EvalResult([1.0, 2.0, 3.0, 4.0, 5.0], [10, 10, 10, 20, 20]).to_json()
    assert result["mean"] == 3 and result["episodes"] == 5 and result["mean_length"] == 14
    assert result["std"] == pytest.approx(math.sqrt(2.5))
    assert result["ci95"] == pytest.approx([3 - 1.963, 3 + 1.963], abs=2e-3)


def test_eval_result_has_intervals_of_numbers_from_info() -> None:
    # x is 1 to 5 in five of six episodes, as above; y is in one episode.
    info = [{"x": 1.0}, {"x": 2.0}, {"y": 8.0}, {"x": 3.0}, {"x": 4.0}, {"x": 5.0}]
    result = EvalResult([0.0] * 6, [1] * 6, info=info).to_json()["info"]
    assert result["x"]["ci95"] == pytest.approx([3 - 1.963, 3 + 1.963], abs=2e-3)
    assert (result["x"]["mean"], result["x"]["episodes"], result["x"]["values"]) == (3.0, 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert result["y"] == {"mean": 8.0, "std": 0.0, "ci95": [8.0, 8.0], "episodes": 1, "values": [8.0]}
    assert "info" not in EvalResult([0.0], [1], info=[{}]).to_json()


def test_eval_result_of_one_episode_has_no_spread() -> None:
    result = EvalResult([2.0], [3]).to_json()
    assert result["std"] == 0 and result["ci95"] == [2.0, 2.0]


def test_playing_assigns_episodes_to_environments_in_turn() -> None:
    # Environment 0 has episodes of 1 action (returns 1, 101, ...), environment 1 of 4 (10, 110, ...): 5 episodes are
    # 0, 2, 4 of the first and 1, 3 of the second, so that short episodes are not favored.
    result = play(Still(), CountingEnvs((1, 4)), 5, None, greedy=True)
    assert result.returns == [1, 10, 101, 110, 201]
    assert result.lengths == [1, 4, 1, 4, 1]


def test_playing_supports_fewer_episodes_than_environments() -> None:
    assert play(Still(), CountingEnvs((2, 2, 2)), 2, None, greedy=True).returns == [3, 3]


def test_playing_calls_on_step_for_every_step() -> None:
    seen = []
    envs = CountingEnvs((2,))
    play(
        Still(), envs, 1, None, greedy=True, on_step=lambda arrival, action: seen.append((arrival.reward[0], action[0]))
    )
    assert seen == [(0, 0), (1, 0)]


def test_playing_resets_carry_at_episode_start() -> None:
    ages, actions = [], []

    def on_step(arrival: TimeStep, action: Any) -> None:
        ages.append(arrival.obs["state"][:, 2].tolist())
        actions.append((action[:, 0] - 1).tolist())

    play(Remembering(), CountingEnvs((2, 4)), 6, None, greedy=True, on_step=on_step)
    assert actions == ages and ages[:4] == [[0, 0], [1, 1], [2, 2], [0, 3]]

"""Reader of the series of a run: each point once, under the name of its metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.store.events import EventLog, read_events
from rlcore.store.series import evaluations, lines, points


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="r", algo="ppo", env_id="CartPole-v1", seed=1)
    log.append("baseline", mean=21.5, std=1.0, ci95=[20.0, 23.0], episodes=10)
    log.append("metrics", policy_steps=100, values={"Rewards/rew_avg": 30.0, "Loss/value_loss": 2.0}, wall_s=0.5)
    log.append("evaluation", policy_steps=100, final=False, greedy={"mean": 40.0, "ci95": [35.0, 45.0]}, wall_s=0.6)
    return log


def test_lines_return_points_of_each_metric(log: EventLog) -> None:
    log.append("evaluation", policy_steps=200, final=False, greedy={"mean": 80.0}, wall_s=1.0)
    log.append("evaluation", policy_steps=100, final=True, greedy={"mean": 39.0}, stochastic={"mean": 36.0})
    assert lines(read_events(log.path)) == {
        "Evaluation/random_mean": [(0, 21.5)],
        "Rewards/rew_avg": [(100, 30.0)],
        "Loss/value_loss": [(100, 2.0)],
        "Evaluation/greedy_mean": [(100, 40.0), (200, 80.0)],
        "Test/cumulative_reward": [(100, 39.0)],
        "Test/cumulative_reward_stochastic": [(100, 36.0)],
        "Time/wall_s": [(100, 0.5), (200, 1.0)],  # once per step, although two events have the time at 100
    }
    assert [e["greedy"].get("ci95") for e in evaluations(read_events(log.path))] == [[35.0, 45.0], None]


def test_lines_have_means_of_numbers_from_info(tmp_path: Path) -> None:
    def result(mean: float, **info: float) -> dict[str, Any]:
        each = {name: {"mean": value, "ci95": [0.0, 1.0], "episodes": 4} for name, value in info.items()}
        return {"mean": mean, "info": each}

    log = EventLog(tmp_path / "events.jsonl")
    log.append("baseline", **result(21.5, won=0.1))
    log.append("metrics", policy_steps=100, values={"Game/won": 0.5})
    log.append("evaluation", policy_steps=100, final=False, greedy=result(40.0, won=0.75, **{"deep.y": 2.0}))
    log.append(
        "evaluation", policy_steps=200, final=False, greedy={"mean": 1.0, "info": {"won": {"mean": 1.0}}}
    )  # damaged
    log.append(
        "evaluation", policy_steps=100, final=True, greedy=result(39.0, won=1.0), stochastic=result(3.0, won=0.9)
    )
    found = lines(read_events(log.path))
    assert {name: [*line] for name, line in found.items() if "won" in name or "deep" in name} == {
        "Evaluation/random_won": [(0, 0.1)],
        "Game/won": [(100, 0.5)],
        "Evaluation/greedy_won": [(100, 0.75)],
        "Evaluation/greedy_deep.y": [(100, 2.0)],
        "Test/won": [(100, 1.0)],
        "Test/won_stochastic": [(100, 0.9)],
    }


def test_points_ignore_repetitions_after_resume(log: EventLog) -> None:
    before = list(points(read_events(log.path)))
    log.append("resume", policy_steps=0)
    log.append("metrics", policy_steps=100, values={"Rewards/rew_avg": 30.0, "Loss/value_loss": 2.0}, wall_s=0.7)
    log.append("evaluation", policy_steps=100, final=False, greedy={"mean": 40.0, "ci95": [35.0, 45.0]}, wall_s=0.8)
    assert list(points(read_events(log.path))) == before


def test_lines_without_wall_clock_have_no_times(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("metrics", policy_steps=100, values={"Rewards/rew_avg": 1.0})
    assert set(lines(read_events(log.path))) == {"Rewards/rew_avg"}

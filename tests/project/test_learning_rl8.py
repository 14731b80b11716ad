"""Tasks and page of the comparison with rl8's examples."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.intervals import difference_interval, mean_interval
from benchmarks.learning_rl8 import TASKS, page
from flows.config.compose import compose

UPDATES = {"cartpole": 40, "mountain_car": 40, "pendulum": 100, "discrete_dummy": 40, "continuous_dummy": 40}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_numbers_of_updates_of_examples(name: str) -> None:
    task = TASKS[name]
    config: Any = compose([*task.protocol().ours, f"env.id={task.env}", "seed=0"])[0]
    assert config.algo.total_steps == UPDATES[name] * 1024 * config.algo.rollout_steps
    assert config.env.num_envs == 1024 and config.algo.per_rank_batch_size is None
    assert config.env.max_episode_steps == task.rows * config.env.horizons_per_env_reset


def test_intervals_match_hand_calculation() -> None:
    # Mean 2, standard deviation 1, t(2) = 4.303: 4.303 / √3 = 2.484.
    assert mean_interval([1, 2, 3]) == pytest.approx((2, 2 - 2.484, 2 + 2.484), abs=1e-3)
    # Standard error √(1/3 + 1/3) = 0.8165, 4 degrees of freedom, t = 2.776.
    assert difference_interval([1, 2, 3], [4, 5, 6]) == pytest.approx((-3, -3 - 2.267, -3 + 2.267), abs=1e-3)


def test_page_marks_task_that_is_below_rl8() -> None:
    def results(ours: list[float], theirs: list[float]) -> dict[str, Any]:
        seeds = {
            str(seed): {"Shepherd": {"return": mine, "cpu": 3.0}, "rl8": {"return": other, "cpu": 9.0}}
            for seed, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        }
        return {"seeds": seeds, "day": "2026-11-29"}

    text = page({"cartpole": results([-9, -8, -7], [-3, -2, -1]), "pendulum": results([-9, -8, -7], [-9, -8, -6.5])})
    cartpole, pendulum = (
        next(row for row in text.splitlines() if row.startswith(f"| {name}"))
        for name in UPDATES
        if name in ("cartpole", "pendulum")
    )
    assert "| **no** | 3 | 9 |" in cartpole and "| yes | 3 | 9 |" in pendulum
    assert "| -8.00 (-10.5 to -5.52) |" in cartpole

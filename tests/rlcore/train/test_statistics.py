"""Statistics of a rollout and of an update."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.train.statistics import episode_statistics, rollout_statistics, update_statistics
from rlcore.types import Episode, Trajectory


def rows(reward: list[list[float]], is_first: list[list[bool]]) -> Trajectory:
    flags, none = torch.tensor(is_first), torch.zeros(len(reward), len(reward[0]), dtype=torch.bool)
    return Trajectory({}, none[..., None].long(), torch.tensor(reward), none, none, flags)


def one(steps: Trajectory, at: int) -> Trajectory:
    return Trajectory(
        {}, steps.action[at], steps.reward[at], steps.terminated[at], steps.truncated[at], steps.is_first[at]
    )


def test_rollout_statistics_equal_numpy_without_rows_that_open_an_episode() -> None:
    # The rewards of row 0 belong to the rollout before. Environment 1 is reset at row 2, environment 0 at row 3.
    whole = rows(
        [[9.0, 9.0], [1.0, 2.0], [3.0, 0.0], [0.0, 8.0]], [[True, True], [False, False], [False, True], [True, False]]
    )
    first = rows(whole.reward[:3].tolist(), whole.is_first[:3].tolist())
    episodes = [Episode(0, 4.0, 10), Episode(1, 7.0, 20)]
    found = rollout_statistics(first, one(whole, 3), episodes, 0.5)
    rewards, returns = np.array([1, 2, 3, 8]), np.array([4, 7])
    for name, values in (("step", rewards), ("rew", returns)):
        expected = {"avg": values.mean(), "min": values.min(), "max": values.max(), "std": values.std()}
        assert {part: found[f"Rewards/{name}_{part}"] for part in expected} == pytest.approx(expected)
    counts = {"Game/ep_len_avg": 15.0, "Game/episodes": 2, "Game/resets": 3, "Game/steps": 4, "Time/collect_s": 0.5}
    assert {name: found[name] for name in counts} == counts
    second = rows(whole.reward[3:].tolist(), whole.is_first[3:].tolist())
    assert rollout_statistics(second, one(whole, 1), [], 0.5)["Game/resets"] == 1  # the reset at row 3 counts once


def test_rollout_statistics_have_no_returns_without_finished_episodes() -> None:
    steps = rows([[0.0], [1.0]], [[True], [False]])
    found = rollout_statistics(steps, one(steps, 1), [], 0.1)
    assert (
        not [name for name in found if name.startswith(("Rewards/rew", "Game/ep_len"))] and found["Game/episodes"] == 0
    )


def test_update_statistics_average_metrics() -> None:
    found = update_statistics({"Loss/value_loss": [1.0, 3.0]}, 8, 0.25)
    assert found.pop("Memory/peak_gb") > 0.01
    assert found == {"Loss/value_loss": 2.0, "Params/gradient_steps": 8.0, "Time/update_s": 0.25}


def test_statistics_have_means_of_numbers_from_info() -> None:
    steps = rows([[0.0], [1.0]], [[True], [False]])
    episodes = [Episode(0, 4.0, 10, {"won": 1.0}), Episode(0, 7.0, 20, {"won": 0.0, "x": 3.0}), Episode(0, 1.0, 2)]
    found = rollout_statistics(steps, one(steps, 1), episodes, 0.1)
    assert (found["Game/won"], found["Game/x"]) == (0.5, 3.0)
    result = {"returns": [1.0], "mean_length": 7, "info": {"won": {"mean": 0.25}}}
    assert episode_statistics(result)["Game/won"] == 0.25


def test_episode_statistics_equal_numpy() -> None:
    found = episode_statistics({"returns": [1.0, 4.0, 10.0], "mean_length": 7})
    returns = np.array([1, 4, 10])
    expected = {"avg": returns.mean(), "min": 1, "max": 10, "std": returns.std()}
    assert {part: found[f"Rewards/rew_{part}"] for part in expected} == pytest.approx(expected)
    assert found["Game/ep_len_avg"] == 7 and found["Game/episodes"] == 3

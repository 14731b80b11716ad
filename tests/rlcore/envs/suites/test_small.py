"""The small environments: observations, rewards, and returns of random and good policies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import UserError

UP, DOWN, LEFT, RIGHT = range(4)


def play(env: Any, act: Callable[[Any], Any], episodes: int) -> list[float]:
    """Returns of episodes with seeds 0, 1, ..."""
    returns = list[float]()
    for seed in range(episodes):
        (obs, _), total, over = env.reset(seed=seed), 0.0, False
        while not over:
            obs, reward, terminated, over, _ = env.step(act(obs))
            assert not terminated
            total += reward
        returns.append(total)
    return returns


def test_point_mass_matches_equations_of_motion() -> None:
    with closing(make(EnvSettings("point_mass"))) as env:
        place, velocity = np.split(env.reset(seed=3)[0]["state"], 2)
        assert np.linalg.norm(place) == pytest.approx(1) and not velocity.any()
        for force in np.array([[0, 0], [1, -1], [5, 0.5], [0, 0]], np.float32):
            obs, reward, _, _, _ = env.step(force)
            velocity = 0.8 * velocity + 0.2 * force.clip(-1, 1)
            place = place + 0.2 * velocity
            np.testing.assert_allclose(obs["state"], [*place, *velocity], rtol=0, atol=1e-6)
            assert reward == pytest.approx(np.exp(-4 * np.sum(place**2)), abs=1e-6)


def test_point_mass_rewards_controller_above_random_actions() -> None:
    with closing(make(EnvSettings("point_mass"))) as env:
        env.action_space.seed(0)
        assert 1.5 < np.mean(play(env, lambda obs: env.action_space.sample(), 100)) < 4
        sprung = play(env, lambda obs: -4 * obs["state"][:2] - 3.2 * obs["state"][2:], 20)
        assert min(sprung) > 33 and max(sprung) < 35


def test_point_mass_image_shows_position_and_center() -> None:
    with closing(make(EnvSettings("point_mass", image_key="rgb"))) as env:
        env.reset(seed=3)
        for _ in range(30):
            obs, *_ = env.step(np.array([1.0, -0.7], np.float32))
            for channel, place in ((0, obs["state"][:2]), (1, np.zeros(2))):
                weights = obs["rgb"][..., channel].astype(float)
                seen = [np.average(np.arange(64), weights=weights.sum(axis)) for axis in (0, 1)]  # column, row
                if np.abs(place).max() < 1.1:  # completely inside the image
                    np.testing.assert_allclose(seen, 31.5 + 20 * place, atol=0.2)
        assert obs["rgb"].dtype == np.uint8 and not obs["rgb"][..., 2].any()


def cell_of(picture: np.ndarray, channel: int) -> np.ndarray:
    """Row and column of a crosshair, from the lines of its color."""
    lit = picture[..., channel] == 255
    side = len(lit) // 4
    return np.array([np.flatnonzero(lit.all(axis))[0] // side for axis in (1, 0)])


def shortest(obs: dict[str, np.ndarray]) -> int:
    """The next move of a shortest path, from the image."""
    row, column = cell_of(obs["rgb"], 1) - cell_of(obs["rgb"], 0)
    return (DOWN if row > 0 else UP) if row else (RIGHT if column > 0 else LEFT)


def test_crosshair_rewards_shortest_path_above_random_actions() -> None:
    with closing(make(EnvSettings("crosshair"))) as env:
        assert spec_of(env).obs["rgb"].shape == (64, 64, 3) and spec_of(env).action.nvec == (4,)
        env.action_space.seed(0)
        assert 0.6 < np.mean(play(env, lambda obs: env.action_space.sample(), 200)) < 1.4
        assert 11 < np.mean(play(env, shortest, 100)) < 13


def test_crosshair_image_shows_position_and_goal() -> None:
    with closing(make(EnvSettings("crosshair", screen_size=32))) as env:
        obs, _ = env.reset(seed=0)
        board: Any = env.unwrapped
        found = 0.0
        for _ in range(30):
            assert obs["rgb"].shape == (32, 32, 3)
            assert (cell_of(obs["rgb"], 0) == board.place).all() and (cell_of(obs["rgb"], 1) == board.goal).all()
            assert (board.place != board.goal).any()
            before = board.goal
            obs, reward, *_ = env.step(shortest(obs))
            assert reward == float((board.place == before).all())
            found += float(reward)
        assert found > 6


def test_crosshair_limits_moves_and_cell_count() -> None:
    with closing(make(EnvSettings("crosshair", wrapper={"cells": 8, "n_steps": 100}))) as env:
        env.reset(seed=0)
        board: Any = env.unwrapped
        for move, at in ((UP, (0, None)), (LEFT, (0, 0)), (DOWN, (7, 0)), (RIGHT, (7, 7))):
            for _ in range(9):
                env.step(move)
            assert board.place[0] == at[0] and at[1] in (None, board.place[1])
    with pytest.raises(UserError, match="env.wrapper.cells=9.*must be from 2 to 8"):
        make(EnvSettings("crosshair", wrapper={"cells": 9}))


@pytest.mark.parametrize("env_id", ["point_mass", "crosshair"])
def test_small_environments_have_tier_snapshot(env_id: str) -> None:
    card = environment_card(EnvSettings(env_id))
    assert (card["tier"], card["deterministic"]) == ("snapshot", True)

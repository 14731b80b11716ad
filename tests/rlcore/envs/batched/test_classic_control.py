"""Batched classic control tasks against Gymnasium's own, from the same states and actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.envs.batched import classic_control as batched
from rlcore.envs.batched.env import BatchedEnv
from rlcore.envs.batched.random import BatchedRandom

COUNT = 10_000
WALL = 1e-6  # states so close to a limit that rounding decides on which side they are


@dataclass(frozen=True)
class Task:
    """A batched class, Gymnasium's id, the range of the tested states, and how a state is spelled here.

    `near` returns the distance of Gymnasium's next state from the nearest limit at which an episode ends.
    """

    create: type[BatchedEnv]
    id: str
    spread: list[float]
    names: tuple[str, ...] = ("values",)
    near: Callable[[np.ndarray], np.ndarray] = lambda state: np.ones(len(state))
    exact: bool = True  # Gymnasium keeps the state in float64


def _height(state: np.ndarray) -> np.ndarray:
    return np.abs(-np.cos(state[:, 0]) - np.cos(state[:, 0] + state[:, 1]) - 1)


def _fall(state: np.ndarray) -> np.ndarray:
    return np.minimum(np.abs(np.abs(state[:, 0]) - 2.4), np.abs(np.abs(state[:, 2]) - np.radians(12)))


TASKS = (
    Task(batched.CartPole, "CartPole-v1", [2.6, 3, 0.25, 3], near=_fall),
    Task(batched.Acrobot, "Acrobot-v1", [np.pi, np.pi, 10, 25], near=_height),
    Task(batched.MountainCar, "MountainCar-v0", [1.2, 0.07], ("position", "velocity"), lambda s: np.abs(s[:, 0] - 0.5)),
    Task(
        batched.MountainCarContinuous,
        "MountainCarContinuous-v0",
        [1.2, 0.07],
        ("position", "velocity"),
        lambda state: np.abs(state[:, 0] - 0.45),
        exact=False,
    ),
    Task(batched.Pendulum, "Pendulum-v1", [9, 8], ("angle", "speed")),
)


def _values(envs: BatchedEnv, names: tuple[str, ...]) -> np.ndarray:
    parts = [envs.state[name] for name in names]
    return (parts[0] if len(parts) == 1 else torch.stack(parts, 1)).double().numpy()


def _play(task: Task, states: np.ndarray, actions: np.ndarray) -> list[Any]:
    """Return next states, observations, rewards and ends of Gymnasium's environment."""
    single: Any = gymnasium.make(task.id).unwrapped
    single.reset(seed=0)
    found = []
    for state, action in zip(states, actions, strict=True):
        single.state, single.steps_beyond_terminated = np.array(state), None
        obs, reward, ended, _, _ = single.step(action if action.shape else int(action))
        found.append((np.array(single.state, np.float64), obs, reward, ended))
    return [np.array(part) for part in zip(*found, strict=True)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_step_equals_gymnasium(task: Task, dtype: torch.dtype, tolerance: float) -> None:
    rng, envs = np.random.default_rng(0), task.create(COUNT)
    states = rng.uniform(-1, 1, (COUNT, len(task.spread))) * task.spread
    if task.id.startswith("MountainCar"):
        states[:, 0] = rng.uniform(-1.2, 0.6, COUNT)
    if dtype == torch.float32:
        states = states.astype(np.float32).astype(np.float64)
    space: Any = task.create.action_space
    continuous = isinstance(space, gymnasium.spaces.Box)
    shown = rng.uniform(-2.5, 2.5, (COUNT, 1)).astype(np.float32) if continuous else rng.integers(space.n, size=COUNT)
    state = torch.tensor(states, dtype=dtype)
    envs.state = dict(zip(task.names, (state,) if len(task.names) == 1 else state.unbind(1), strict=True))
    action = torch.tensor(shown).to(dtype) if continuous else torch.tensor(shown)
    obs, reward, ended = envs.step(action)
    exact = shown.astype(np.float64) if continuous else shown
    next_state, next_obs, paid, over = _play(task, states, exact)
    tolerance = tolerance if task.exact else 1e-6
    scale = np.maximum(1, np.abs(next_state).max(0))  # tolerances are relative to the range of each number
    close = np.abs(_values(envs, task.names) - next_state) / scale
    assert np.quantile(close, 0.999) < tolerance
    sure = task.near(next_state) > WALL
    assert sure.mean() > 0.99
    assert np.array_equal(ended.numpy()[sure], over[sure])
    assert isinstance(obs, Tensor)
    assert obs.dtype == torch.float32
    assert np.quantile(np.abs(obs.numpy() - next_obs), 0.999) < 1e-5 * scale.max()
    assert np.abs(reward.double().numpy() - paid)[sure].max() < 1e-5 * max(1, np.abs(paid).max())
    assert (over.mean() > 0.01) == (task.id != "Pendulum-v1")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_start_states_have_gymnasium_distribution(task: Task) -> None:
    single: Any = gymnasium.make(task.id).unwrapped
    expected = np.array([single.reset(seed=seed)[0] for seed in range(2_000)])
    envs = task.create(2_000)
    envs.random = BatchedRandom(torch.arange(2_000), torch.zeros(2_000, dtype=torch.int64))
    found = envs.reset(envs.Config())
    assert isinstance(found, Tensor)
    for mine, theirs in zip(found.numpy().T, expected.T, strict=True):
        grid = np.quantile(theirs, np.linspace(0.05, 0.95, 19))
        steps = [(mine <= edge).mean() - (theirs <= edge).mean() for edge in grid]  # Kolmogorov-Smirnov
        assert np.abs(steps).max() < 1.95 * (2 / 2_000) ** 0.5  # 0.1 %


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_spaces_and_limits_equal_gymnasium(task: Task) -> None:
    single = gymnasium.make(task.id)
    assert single.spec is not None
    assert task.create.max_episode_steps == single.spec.max_episode_steps
    assert task.create.action_space == single.action_space
    mine, theirs = task.create.observation_space, single.observation_space
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype

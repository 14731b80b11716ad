"""rl8's tasks as batched environments, against results of rl8 1.0.0 and its examples (tests/golden/rl8_tasks.npz)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.envs.batched import rl8_tasks
from rlcore.envs.batched.env import BatchedEnv
from rlcore.envs.batched.random import BatchedRandom
from tests.golden.fixtures import arrays, part

STARTS = 4_000
TASKS: dict[str, tuple[type[BatchedEnv], tuple[str, ...]]] = {  # name -> class, and names of its state
    "cartpole": (rl8_tasks.CartPole, ("values",)),
    "mountain_car": (rl8_tasks.MountainCar, ("position", "velocity")),
    "pendulum": (rl8_tasks.Pendulum, ("angle", "speed")),
    "discrete_dummy": (rl8_tasks.DiscreteDummy, ("position",)),
    "continuous_dummy": (rl8_tasks.ContinuousDummy, ("position",)),
}


@pytest.mark.parametrize("name", TASKS)
def test_step_equals_rl8(name: str) -> None:
    create, names = TASKS[name]
    expected = part(arrays("rl8_tasks"), f"{name}/")
    envs, state = create(len(expected["state"])), torch.tensor(expected["state"])
    envs.state = dict(zip(names, (state,) if names == ("values",) else state.unbind(1), strict=True))
    action = torch.tensor(expected["action"])
    obs, reward, *_ = envs.step(action if name in ("pendulum", "continuous_dummy") else action[:, 0])
    assert isinstance(obs, Tensor)
    after = envs.state["values"] if names == ("values",) else torch.stack([envs.state[key] for key in names], 1)
    for mine, theirs in ((after, "next"), (obs, "obs"), (reward[:, None], "reward")):
        np.testing.assert_allclose(mine.numpy(), expected[theirs], rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("name", TASKS)
def test_start_states_have_rl8_distribution(name: str) -> None:
    envs = TASKS[name][0](STARTS)
    envs.random = BatchedRandom(torch.arange(STARTS), torch.zeros(STARTS, dtype=torch.int64))
    found = envs.reset(envs.Config())
    assert isinstance(found, Tensor)
    for mine, edges in zip(found.numpy().T, arrays("rl8_tasks")[f"{name}/start"].T, strict=True):
        below = (mine[:, None] <= edges).mean(0) - np.linspace(0.05, 0.95, 19)
        assert np.abs(below).max() < 1.95 * (2 / STARTS) ** 0.5  # Kolmogorov-Smirnov, 0.1 %


@pytest.mark.parametrize(
    ("name", "limit"),
    [("cartpole", 128), ("mountain_car", 512), ("pendulum", 512), ("discrete_dummy", None), ("continuous_dummy", None)],
)
def test_tasks_are_endless_with_rl8_limits(name: str, limit: int | None) -> None:
    task = TASKS[name][0]
    assert task.endless and task.max_episode_steps == limit

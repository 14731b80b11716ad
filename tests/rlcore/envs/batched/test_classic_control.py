"""Batched classic control tasks against Gymnasium's own, from the same states and actions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from rlcore.envs.batched.classic_control import CartPole

STATES = 10_000


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_cartpole_steps_equal_gymnasium(dtype: torch.dtype, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (STATES, 4)) * [2.6, 3, 0.25, 3]  # some fall in this step
    actions = rng.integers(2, size=STATES)
    envs = CartPole(STATES)
    envs.state = {"values": torch.tensor(states, dtype=dtype)}
    obs, reward, terminated = envs.step(torch.tensor(actions))
    single = gymnasium.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    expected = []
    for state, action in zip(states, actions, strict=True):
        single.state, single.steps_beyond_terminated = tuple(state), None
        _, paid, ended, _, _ = single.step(int(action))
        expected.append((*single.state, paid, ended))
    *values, paid, ended = np.array(expected).T
    assert np.abs(envs.state["values"].numpy() - np.stack(values, 1)).max() < tolerance
    assert np.abs(obs.numpy() - np.stack(values, 1)).max() < 1e-5
    assert np.array_equal(reward.numpy(), paid)
    unsure = (np.abs(np.abs(values[0]) - 2.4) < 1e-6) | (np.abs(np.abs(values[2]) - np.radians(12)) < 1e-6)
    assert np.array_equal(terminated.numpy()[~unsure], ended.astype(bool)[~unsure])
    assert 500 < ended.sum() < STATES - 500

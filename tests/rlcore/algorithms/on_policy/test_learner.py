from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.learner import RewardScaler
from rlcore.functional.returns import TransitionTargets
from rlcore.store.checkpoint import nested_state
from rlcore.types import Batch, Trajectory


def steps(reward: list[list[float]], done: list[list[int]], weight: list[list[int]]) -> TransitionTargets:
    ended = torch.tensor(done).bool()
    return TransitionTargets(torch.tensor(reward), ended, ended, torch.tensor(weight).float())


def test_reward_scaler_divides_by_discounted_return_std() -> None:
    # γ 0.5. Environment 0: rewards 1, 2, end, (reset), 4, so returns 1, 2.5, -, 4.
    # Environment 1: rewards 1, 1, 1, 1, so returns 1, 1.5, 1.75, 1.875.
    step = steps([[1, 1], [2, 1], [0, 1], [4, 1]], [[0, 0], [1, 0], [0, 0], [0, 0]], [[1, 1], [1, 1], [0, 1], [1, 1]])
    scaled = RewardScaler(0.5, 100.0)(step)
    std = np.std([1, 2.5, 4, 1, 1.5, 1.75, 1.875])
    np.testing.assert_allclose(scaled.numpy(), step.reward.numpy() / std, rtol=1e-6)
    assert scaled.dtype == torch.float32


def test_reward_scaler_continues_across_rollouts() -> None:
    whole = steps([[1.0], [3.0], [-2.0], [5.0]], [[0]] * 4, [[1]] * 4)
    halves = [steps([[1.0], [3.0]], [[0]] * 2, [[1]] * 2), steps([[-2.0], [5.0]], [[0]] * 2, [[1]] * 2)]
    one, two = RewardScaler(0.9, 100.0), RewardScaler(0.9, 100.0)
    one(whole)
    two(halves[0])
    loaded = RewardScaler(0.9, 100.0)
    loaded.load_state_dict(nested_state.decode(*nested_state.encode(two.state_dict())))
    loaded(halves[1])
    assert loaded.moments.variance.item() == pytest.approx(one.moments.variance.item(), rel=1e-12)
    assert loaded.running.tolist() == one.running.tolist()


def test_reward_scaler_of_rollout_ignores_earlier_rollouts() -> None:
    # γ 0.5. The returns of the second rollout start with 0: they are 1 and 6.5. The last row of environment 1 only
    # resets it, and its returns are 1 and 1.
    first = steps([[4.0, 4.0]], [[0, 0]], [[1, 1]])
    second = steps([[1.0, 1.0], [6.0, 1.0], [0.0, 9.0]], [[0, 1], [1, 1], [0, 0]], [[1, 1], [1, 1], [0, 0]])
    scaler = RewardScaler(0.5, 100.0, scope="rollout")
    scaler(first)
    scaled = scaler(second)
    std = np.std([1, 6.5, 1, 1], ddof=1)
    np.testing.assert_allclose(scaled.numpy(), second.reward.numpy() / std, rtol=1e-6)
    assert scaled.dtype == torch.float32


def test_reward_scaler_of_rollout_matches_rl8() -> None:
    # Recorded from rl8 1.0.0: DiscreteDummyEnv, 2 environments that are never reset, rollouts of 3 steps, γ 0.5.
    x, y = 40.04582214355469, 98.65623474121094
    rollouts = [
        ([[-x - 2, -y], [-x - 1, -y - 1], [-x, -y - 2]], 52.31003952026367),
        ([[-x - 1, -y - 3], [-x - 2, -y - 2], [-x - 1, -y - 3]], 53.4400634765625),
    ]
    scaler = RewardScaler(0.5, 1e9, scope="rollout")
    for reward, scale in rollouts:
        step = steps(reward, [[0, 0]] * 3, [[1, 1]] * 3)
        np.testing.assert_allclose(scaler(step).numpy(), step.reward.numpy() / scale, rtol=1e-6)


def test_reward_scaler_starts_again_if_environments_were_reset_between_rollouts() -> None:
    # γ 0.5. Environment 0 goes on: its return is 0.5 · 4 + 1 = 3. Environment 1 was reset: its return is 1.
    scaler = RewardScaler(0.5, 100.0)
    none = torch.zeros(1, 2, dtype=torch.bool)
    for reward, opens in ((4.0, [False, False]), (1.0, [False, True])):
        flags = none, none, torch.tensor([opens])
        first = Trajectory({}, none[..., None], torch.zeros(1, 2), *flags)
        last = Trajectory({}, none[0, :, None], torch.full((2,), reward), none[0], none[0], none[0])
        scaler.scale(Batch(first, last, 0))
    assert scaler.running.tolist() == [3.0, 1.0]


def test_reward_scaler_saves_state_before_first_rollout() -> None:
    loaded = RewardScaler(0.9, 10.0)
    loaded.load_state_dict(nested_state.decode(*nested_state.encode(RewardScaler(0.9, 10.0).state_dict())))
    loaded(steps([[1.0, 2.0]], [[0, 0]], [[1, 1]]))
    assert loaded.running.tolist() == [1, 2]


def test_reward_scaler_clips_without_shift() -> None:
    scaler = RewardScaler(0.9, 2.0)
    rewards = [[0.0]] * 50 + [[1000.0]]
    scaled = scaler(steps(rewards, [[1]] * 51, [[1]] * 51))
    assert scaled[-1].item() == 2.0 and (scaled[:-1] == 0).all()

from __future__ import annotations

import pytest
import torch

from rlcore.config.groups import EnvConfig
from rlcore.data.steps import restore_reward, shift, transform_reward, transitions
from rlcore.types import Batch, Trajectory


def batch() -> Batch:
    """Column 0: the example of rlcore/types.py. Column 1: the time step after the rollout truncates an episode."""
    reward = torch.tensor([[0.0, 7.0], [1.0, 1.0], [2.0, 2.0], [0.0, 3.0], [10.0, 4.0]])
    terminated = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    truncated = torch.tensor([[0, 0], [0, 0], [0, 0], [0, 0], [0, 1]]).bool()
    is_first = torch.tensor([[1, 0], [0, 0], [0, 0], [1, 0], [0, 0]]).bool()
    action = torch.zeros(5, 2, 1)
    columns = [action, reward, terminated, truncated, is_first]
    return Batch(Trajectory({}, *(c[:-1] for c in columns)), Trajectory({}, *(c[-1] for c in columns)), 0)


def test_transitions_take_reward_from_next_row() -> None:
    assert transitions(batch()).reward.tolist() == [[1, 1], [2, 2], [0, 3], [10, 4]]


def test_transitions_take_end_flags_from_next_row() -> None:
    step = transitions(batch())
    assert step.terminated.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    assert step.done.tolist() == [[0, 0], [1, 0], [0, 0], [0, 1]]


def test_transitions_give_reset_rows_zero_weight() -> None:
    assert transitions(batch()).weight.tolist() == [[1, 1], [1, 1], [0, 1], [1, 1]]


def test_transitions_detect_reset_in_row_zero() -> None:
    example = batch()
    example.steps.truncated[0, 1] = True
    step = transitions(example)
    assert step.weight[0].tolist() == [1, 0]


def test_transitions_end_before_unannounced_episode_start() -> None:
    """Such starts occur where one recording of a dataset follows another: column 1, rows 1 to 2."""
    example = batch()
    example.steps.is_first[2, 1] = True
    step = transitions(example)
    assert step.weight.tolist() == [[1, 1], [1, 0], [0, 1], [1, 1]]
    assert step.done.tolist() == [[0, 1], [1, 0], [0, 0], [0, 1]]  # truncated, not terminated
    assert step.terminated.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    example.last.is_first[0] = True
    assert transitions(example).weight[-1].tolist() == [0, 1]


def test_shift_appends_last_row() -> None:
    assert shift(torch.tensor([[1], [2], [3]]), torch.tensor([4])).tolist() == [[2], [3], [4]]


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_restore_reward_inverts_transform_reward(scale: float) -> None:
    rewards = torch.tensor([-30.0, -1.5, 0.0, 0.25, 5.0])
    for clip in (False, True):
        config = EnvConfig(id="x", reward_scale=scale, clip_rewards=clip)
        learned = transform_reward(config, rewards)
        restored = restore_reward(config, learned)
        torch.testing.assert_close(restored[1:], rewards[1:], rtol=1e-4, atol=0)
        torch.testing.assert_close(transform_reward(config, restored), learned, rtol=1e-6, atol=0)
        assert restored.isfinite().all()

from __future__ import annotations

import torch

from rlcore.data.steps import shift, transitions
from rlcore.types import Batch, Trajectory


def batch() -> Batch:
    """The example of rlcore/types.py in column 0; in column 1 an episode is cut at the arrival after the rollout."""
    reward = torch.tensor([[0.0, 7.0], [1.0, 1.0], [2.0, 2.0], [0.0, 3.0], [10.0, 4.0]])
    terminated = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]]).bool()
    truncated = torch.tensor([[0, 0], [0, 0], [0, 0], [0, 0], [0, 1]]).bool()
    is_first = torch.tensor([[1, 0], [0, 0], [0, 0], [1, 0], [0, 0]]).bool()
    action = torch.zeros(5, 2, 1)
    columns = [action, reward, terminated, truncated, is_first]
    return Batch(Trajectory({}, *(c[:-1] for c in columns)), Trajectory({}, *(c[-1] for c in columns)), 0)


def test_what_arrived_with_the_next_row_belongs_to_the_step() -> None:
    assert transitions(batch()).reward.tolist() == [[1, 1], [2, 2], [0, 3], [10, 4]]


def test_a_step_ends_its_episode_where_the_next_row_says_so() -> None:
    step = transitions(batch())
    assert step.terminated.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    assert step.done.tolist() == [[0, 0], [1, 0], [0, 0], [0, 1]]


def test_the_row_that_only_resets_counts_nothing() -> None:
    assert transitions(batch()).weight.tolist() == [[1, 1], [1, 1], [0, 1], [1, 1]]


def test_an_end_that_arrived_with_row_zero_makes_it_a_reset_row() -> None:
    example = batch()
    example.steps.truncated[0, 1] = True
    step = transitions(example)
    assert step.weight[0].tolist() == [1, 0]


def test_a_row_before_one_that_opens_an_episode_is_a_reset_whether_or_not_an_end_is_on_record() -> None:
    """As where a dataset, or a memory filled from one, goes from one recording to the next: column 1, rows 1 to 2."""
    example = batch()
    example.steps.is_first[2, 1] = True
    step = transitions(example)
    assert step.weight.tolist() == [[1, 1], [1, 0], [0, 1], [1, 1]]
    assert step.done.tolist() == [[0, 1], [1, 0], [0, 0], [0, 1]]  # what was going on is cut short, not ended
    assert step.terminated.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    example.last.is_first[0] = True
    assert transitions(example).weight[-1].tolist() == [0, 1]


def test_shifted_appends_the_arrival() -> None:
    assert shift(torch.tensor([[1], [2], [3]]), torch.tensor([4])).tolist() == [[2], [3], [4]]

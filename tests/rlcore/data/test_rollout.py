from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.data.rollout import Rollout, minibatches
from rlcore.types import Steps


def visited(weight: torch.Tensor, size: int, epochs: int = 1, group: int = 1, seed: int = 0) -> list:
    return list(minibatches(weight, size, epochs, group, np.random.default_rng(seed)))


@pytest.mark.parametrize(("count", "size"), [(12, 4), (13, 4), (3, 4), (1, 1)])
def test_every_counted_row_is_visited_once_an_epoch(count: int, size: int) -> None:
    weight = torch.ones(count + 2)
    weight[[0, -1]] = 0
    pieces = [pair for group in visited(weight, size, epochs=2) for pair in group]
    for epoch in (pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]):
        rows = torch.cat([rows[w > 0] for rows, w in epoch])
        assert sorted(rows.tolist()) == list(range(1, count + 1))


def test_minibatches_have_one_shape_and_fill_up_with_rows_of_weight_zero() -> None:
    pieces = [pair for group in visited(torch.ones(10), 4) for pair in group]
    assert [len(rows) for rows, _ in pieces] == [4, 4, 4]
    assert [w.sum().item() for _, w in pieces] == [4, 4, 2]


def test_a_minibatch_is_never_larger_than_the_rollout() -> None:
    ((rows, weight),) = visited(torch.ones(5), 64)[0]
    assert len(rows) == 5 and weight.tolist() == [1] * 5


def test_groups_end_with_their_epoch() -> None:
    assert [len(group) for group in visited(torch.ones(10), 2, epochs=2, group=2)] == [2, 2, 1, 2, 2, 1]


def test_order_differs_between_epochs_and_comes_from_the_generator_alone() -> None:
    orders = [
        [rows.tolist() for group in visited(torch.ones(50), 50, 2, seed=s) for rows, _ in group] for s in (0, 0, 1)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1]


def test_weights_take_the_dtype_they_came_in() -> None:
    ((_, weight),) = visited(torch.ones(4, dtype=torch.float64), 3)[0]
    assert weight.dtype == torch.float64


def test_nothing_that_counts_gives_no_minibatch() -> None:
    assert visited(torch.zeros(4), 2) == []


def test_rollout_is_handed_out_once_with_the_steps_it_began_at() -> None:
    empty = torch.zeros(1, 1)
    steps = Steps({}, empty, empty, empty, empty, empty)
    buffer = Rollout()
    assert list(buffer.batches(0)) == []
    buffer.extend(steps, steps)
    (batch,) = buffer.batches(96)
    assert batch.steps is steps and batch.env_steps == 96
    assert list(buffer.batches(96)) == []

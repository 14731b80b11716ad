from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.data.rollout import Rollout, cut_sequences, minibatches
from rlcore.types import Trajectory


def visited(weight: torch.Tensor, size: int, epochs: int = 1, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows, counts = minibatches(weight, size, epochs, np.random.default_rng(seed))
    return [(epoch, counts) for epoch in rows]


@pytest.mark.parametrize(("count", "size"), [(12, 4), (13, 4), (3, 4), (1, 1)])
def test_every_counted_row_is_visited_once_an_epoch(count: int, size: int) -> None:
    weight = torch.ones(count + 2)
    weight[[0, -1]] = 0
    epochs = visited(weight, size, epochs=2)
    assert len(epochs) == 2
    for rows, counts in epochs:
        assert sorted(rows[counts > 0].tolist()) == list(range(1, count + 1))


def test_minibatches_have_one_shape_and_fill_up_with_rows_of_weight_zero() -> None:
    ((rows, weight),) = visited(torch.ones(10), 4)
    assert rows.shape == (3, 4)
    assert weight.sum(-1).tolist() == [4, 4, 2]


def test_their_number_follows_from_the_rows_and_not_from_those_that_count() -> None:
    weight = torch.ones(12)
    weight[:5] = 0
    ((rows, counts),) = visited(weight, 4)
    assert (rows.shape, counts.sum(-1).tolist()) == ((3, 4), [3, 2, 2])  # none is left without a sample
    assert sorted(rows[counts > 0].tolist()) == list(range(5, 12)) and set(rows.ravel().tolist()) <= set(range(5, 12))


def test_a_minibatch_is_never_larger_than_the_rollout() -> None:
    ((rows, weight),) = visited(torch.ones(5), 64)
    assert rows.shape == (1, 5) and weight.tolist() == [[1] * 5]


def test_order_differs_between_epochs_and_comes_from_the_generator_alone() -> None:
    orders = [[rows.tolist() for rows, _ in visited(torch.ones(50), 50, 2, seed=s)] for s in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1]


def test_weights_take_the_dtype_they_came_in() -> None:
    ((_, weight),) = visited(torch.ones(4, dtype=torch.float64), 3)
    assert weight.dtype == torch.float64


def test_nothing_that_counts_gives_minibatches_of_no_weight() -> None:
    ((_, weight),) = visited(torch.zeros(4), 2)
    assert weight.tolist() == [[0, 0], [0, 0]]


def test_rollout_is_handed_out_once_with_the_steps_it_began_at() -> None:
    empty = torch.zeros(1, 1)
    steps = Trajectory({}, empty, empty, empty, empty, empty)
    buffer = Rollout()
    assert list(buffer.batches(0)) == []
    buffer.extend(steps, steps)
    (batch,) = buffer.batches(96)
    assert batch.steps is steps and batch.policy_steps == 96
    assert list(buffer.batches(96)) == []


@pytest.mark.parametrize(
    ("length", "longest", "lengths"),
    [(8, 4, [4, 4]), (10, 4, [3, 3, 4]), (24, 7, [6, 6, 6, 6]), (5, 9, [5]), (3, 1, [1] * 3)],
)
def test_a_rollout_is_cut_into_sequences_as_equal_as_they_can_be(length: int, longest: int, lengths: list[int]) -> None:
    rows, own = cut_sequences(length, 2, longest)
    assert own.sum(1).tolist() == [each for each in lengths for _ in range(2)]
    t, env = rows // 2, rows % 2
    assert (env == env[:, :1]).all()  # each of one environment
    assert sorted(rows[own].tolist()) == list(range(2 * length))  # every row once
    for row, counted in zip(t, own, strict=True):
        assert (row[counted].diff() == 1).all()  # without a gap
        assert (row[~counted] == row[counted][-1]).all()  # and filled up by its last

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.data.rollout import Rollout, cut_sequences, minibatches
from rlcore.types import Trajectory


def iterate_minibatches(
    weight: torch.Tensor, size: int, epochs: int = 1, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows, counts = minibatches(weight.unsqueeze(-1), size, epochs, np.random.default_rng(seed))
    return [(epoch, counts) for epoch in rows]


@pytest.mark.parametrize(("count", "size"), [(12, 4), (13, 4), (3, 4), (1, 1)])
def test_minibatches_visit_weighted_rows_once_per_epoch(count: int, size: int) -> None:
    weight = torch.ones(count + 2)
    weight[[0, -1]] = 0
    epochs = iterate_minibatches(weight, size, epochs=2)
    assert len(epochs) == 2
    for rows, counts in epochs:
        assert sorted(rows[counts > 0].tolist()) == list(range(1, count + 1))


def test_minibatches_pad_to_equal_shape() -> None:
    ((rows, weight),) = iterate_minibatches(torch.ones(10), 4)
    assert rows.shape == (3, 4)
    assert weight.sum(-1).tolist() == [4, 4, 2]


def test_minibatch_count_is_independent_of_weights() -> None:
    weight = torch.ones(12)
    weight[:5] = 0
    ((rows, counts),) = iterate_minibatches(weight, 4)
    assert (rows.shape, counts.sum(-1).tolist()) == ((3, 4), [3, 2, 2])  # no minibatch is empty
    assert sorted(rows[counts > 0].tolist()) == list(range(5, 12)) and set(rows.ravel().tolist()) <= set(range(5, 12))


def test_minibatch_is_not_larger_than_rollout() -> None:
    ((rows, weight),) = iterate_minibatches(torch.ones(5), 64)
    assert rows.shape == (1, 5) and weight.tolist() == [[1] * 5]


def test_minibatch_order_depends_on_generator_only() -> None:
    orders = [[rows.tolist() for rows, _ in iterate_minibatches(torch.ones(50), 50, 2, seed=s)] for s in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][0] != orders[0][1]


def test_minibatches_without_generator_are_ordered_by_environment() -> None:
    weight = torch.ones(3, 2)  # the index of row t of environment b is 2 t + b
    weight[1, 0] = 0
    rows, counts = minibatches(weight, 3, 2, None)
    assert rows.tolist() == [[[0, 4, 1], [3, 5, 0]]] * 2
    assert counts.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_minibatches_without_size_hold_all_samples() -> None:
    rows, counts = minibatches(torch.ones(3, 2), None, 2, np.random.default_rng(0))
    assert rows.shape == (2, 1, 6) and counts.tolist() == [[1] * 6]


def test_minibatches_keep_dtype_of_weights() -> None:
    ((_, weight),) = iterate_minibatches(torch.ones(4, dtype=torch.float64), 3)
    assert weight.dtype == torch.float64


def test_minibatches_of_zero_weights_have_zero_weight() -> None:
    ((_, weight),) = iterate_minibatches(torch.zeros(4), 2)
    assert weight.tolist() == [[0, 0], [0, 0]]


def test_rollout_batches_yields_each_rollout_once() -> None:
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
def test_cut_sequences_balances_sequence_lengths(length: int, longest: int, lengths: list[int]) -> None:
    rows, own = cut_sequences(length, 2, longest)
    assert own.sum(1).tolist() == [each for each in lengths for _ in range(2)]
    t, env = rows // 2, rows % 2
    assert (env == env[:, :1]).all()  # one environment per sequence
    assert sorted(rows[own].tolist()) == list(range(2 * length))  # every row once
    for row, counted in zip(t, own, strict=True):
        assert (row[counted].diff() == 1).all()  # without a gap
        assert (row[~counted] == row[counted][-1]).all()  # padded with the last row

"""Division of a rollout into minibatches and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.data import minibatches as module
from rlcore.data.minibatches import cut_sequences, minibatches, order_on_device, order_on_host
from rlcore.types import SingleProcess

ONE = SingleProcess()


class TwoRanks(SingleProcess):
    """Ranks of a process whose partner has the same minibatches."""

    size = 2

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def weights(length: int, width: int, seed: int, share: float) -> torch.Tensor:
    return torch.from_numpy((np.random.default_rng(seed).random((length, width)) > share).astype(np.float32))


def iterate_minibatches(
    weight: torch.Tensor, size: int, epochs: int = 1, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows, counts = minibatches(weight.unsqueeze(-1), size, epochs, 1, np.random.default_rng(seed), ONE)
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
    rows, weight = minibatches(torch.ones(5, 2), 4, 1, 1, None, ONE)
    assert rows.tolist() == [[[0, 2, 4, 6], [8, 1, 3, 5], [7, 9, 0, 2]]]  # the first samples are repeated
    assert weight.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_minibatch_count_is_independent_of_weights() -> None:
    weight = torch.ones(12)
    weight[:5] = 0
    ((rows, counts),) = iterate_minibatches(weight, 4)
    assert (rows.shape, counts.sum(-1).tolist()) == ((3, 4), [3, 2, 2])  # no minibatch is empty
    assert sorted(rows[counts > 0].tolist()) == list(range(5, 12)) and set(rows.ravel().tolist()) <= set(range(5, 12))


def test_minibatch_is_not_larger_than_rollout() -> None:
    ((rows, weight),) = iterate_minibatches(torch.ones(5), 64)
    assert rows.shape == (1, 5) and weight.tolist() == [[1] * 5]


@pytest.mark.parametrize("order", [order_on_host, order_on_device])
def test_order_depends_on_generator_only(order: Any) -> None:
    first, again, other = (order(weights(16, 4, 1, 0.2), 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len({tuple(epoch.tolist()) for epoch in first}) == 3


def test_minibatches_without_generator_are_ordered_by_environment() -> None:
    weight = torch.ones(3, 2)  # the index of row t of environment b is 2 t + b
    weight[1, 0] = 0
    rows, counts = minibatches(weight, 3, 2, 1, None, ONE)
    assert rows.tolist() == [[[0, 4, 1], [3, 5, 0]]] * 2
    assert counts.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert torch.equal(order_on_device(weight, 2, None), order_on_host(weight, 2, None))


def test_minibatches_without_size_contain_all_samples() -> None:
    rows, counts = minibatches(torch.ones(3, 2), None, 2, None, np.random.default_rng(0), ONE)
    assert rows.shape == (2, 1, 6) and counts.tolist() == [[1] * 6]


def test_minibatches_keep_dtype_of_weights() -> None:
    ((_, weight),) = iterate_minibatches(torch.ones(4, dtype=torch.float64), 3)
    assert weight.dtype == torch.float64


def test_minibatches_empty_on_all_ranks_are_removed() -> None:
    weight = torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    # One sample in 4 minibatches of one; three are removed, and a group of two is filled by a repetition.
    rows, counts = minibatches(weight, 1, 2, 2, None, ONE)
    assert rows.tolist() == [[[1], [1]]] * 2 and counts.tolist() == [[1], [0]]
    rows, counts = minibatches(torch.zeros(4, 1), 2, 2, 1, None, ONE)
    assert rows.shape == (2, 0, 2) and counts.shape == (0, 2)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_order_on_device_equals_that_on_host_for_the_same_draws(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights(10, 4, 0, share)
    used = weight.flatten().numpy().nonzero()[0]
    orders = [np.random.default_rng(seed).permutation(used) for seed in range(2)]

    class Fixed:
        def __init__(self) -> None:
            self.left = iter(orders)

        def permutation(self, _: np.ndarray) -> np.ndarray:
            return next(self.left)

    keys = torch.zeros(2, weight.numel(), dtype=torch.float64)
    for row, order in zip(keys, orders, strict=True):
        row[torch.from_numpy(order)] = torch.arange(len(order), dtype=torch.float64)
    monkeypatch.setattr(module, "_sort_keys", lambda *_: keys)
    fixed: Any = Fixed()
    assert torch.equal(order_on_device(weight, 2, np.random.default_rng(0)), order_on_host(weight, 2, fixed))


@pytest.mark.parametrize(
    ("length", "size", "rows", "ranks", "expected"),
    [
        (8, 8, 1, ONE, True),
        (8, None, 1, ONE, True),
        (8, 3, 2, ONE, True),
        (1, None, 1, ONE, False),
        (8, 3, 1, ONE, False),
        (8, 8, 1, TwoRanks(), False),
    ],
)
def test_minibatches_read_no_value_if_none_can_be_empty(
    length: int, size: int | None, rows: int, ranks: SingleProcess, expected: bool
) -> None:
    weight = torch.ones(length, 4, device="meta")  # reading a value of this device is an error
    if expected:
        found, counts = minibatches(weight, size, 2, 3, np.random.default_rng(0), ranks, rows)
        assert found.device.type == "meta" and found.shape[1:] == counts.shape and len(counts) % 3 == 0
    else:
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
            minibatches(weight, size, 2, 3, np.random.default_rng(0), ranks, rows)


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

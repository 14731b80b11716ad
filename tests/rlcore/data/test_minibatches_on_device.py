"""Minibatches that are drawn on the device: the same as those of NumPy, apart from the random order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.data import minibatches_on_device as module
from rlcore.data.minibatches_on_device import draws_on_device, minibatches_on_device
from rlcore.data.rollout import fill_groups, minibatches


def weights(length: int, width: int, seed: int, share: float) -> torch.Tensor:
    return torch.from_numpy((np.random.default_rng(seed).random((length, width)) > share).astype(np.float32))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("size", "group"), [(8, 1), (8, 3), (40, 1), (7, 2)])
def test_minibatches_equal_those_of_numpy_with_the_same_order(
    size: int, group: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(module, "_order", lambda *_: keys)
    fixed: Any = Fixed()
    expected = fill_groups(*minibatches(weight.flatten(), size, 2, fixed), group, lambda sums: sums)
    found = minibatches_on_device(weight, size, 2, group, np.random.default_rng(0))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_order_is_random_in_each_epoch_and_set_by_the_stream() -> None:
    weight = weights(16, 4, 1, 0.2)
    first, again, other = (
        minibatches_on_device(weight, 16, 3, 1, np.random.default_rng(seed))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len({tuple(epoch.flatten().tolist()) for epoch in first}) == 3


def test_without_stream_samples_are_ordered_by_environment() -> None:
    rows, weight = minibatches_on_device(torch.ones(3, 2), None, 1, None, None)
    assert rows.tolist() == [[[0, 2, 4, 1, 3, 5]]] and weight.tolist() == [[1.0] * 6]


@pytest.mark.parametrize(
    ("device", "length", "size", "expected"),
    [
        ("cpu", 8, 64, False),
        ("meta", 8, 64, True),
        ("meta", 8, None, True),
        ("meta", 1, 64, False),
        ("meta", 8, 3, False),
    ],
)
def test_draws_on_device_only_if_no_minibatch_can_be_empty(
    device: str, length: int, size: int | None, expected: bool
) -> None:
    assert draws_on_device(torch.ones(length, 4, device=device), size) is expected


def test_drawing_reads_no_value() -> None:
    rows, weight = minibatches_on_device(torch.ones(8, 4, device="meta"), 8, 2, 3, np.random.default_rng(0))
    assert rows.shape == (2, 6, 8) and weight.shape == (6, 8) and rows.device.type == "meta"

"""Lengths and returns of episodes, in NumPy arrays and in tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.envs.episodes import EpisodeCounts, refuse_other_envs
from rlcore.errors import RunError

NUMPY = (lambda *shape: np.zeros(2, *shape), np.array, lambda values, mask: np.where(mask, 0, values))
TORCH = (lambda *shape: torch.zeros(2, dtype=shape[0]), torch.tensor, lambda values, mask: values.masked_fill(mask, 0))


@pytest.mark.parametrize(
    ("new", "array", "clear", "integer", "real"),
    [(*NUMPY, np.int64, np.float64), (*TORCH, torch.int64, torch.float64)],
    ids=["arrays", "tensors"],
)
def test_counts_of_running_episodes(new: Any, array: Any, clear: Any, integer: Any, real: Any) -> None:
    """Environment 0 takes three actions; environment 1 begins an episode in the second step and then takes one."""
    counts, earlier = EpisodeCounts(new(integer), new(real), clear), []
    for opens, reward in (([False, False], [0.5, 8.0]), ([False, True], [0.25, 0.0]), ([False, False], [4.0, 1.0])):
        counts.step()
        counts.begin(array(opens))
        counts.add(array(reward))
        earlier.append((counts.length, counts.ret))
    assert [length.tolist() for length, _ in earlier] == [[1, 1], [2, 0], [3, 1]]  # no array was changed in place
    assert [ret.tolist() for _, ret in earlier] == [[0.5, 8.0], [0.75, 0.0], [4.75, 1.0]]
    assert (counts.length.dtype, counts.ret.dtype) == (integer, real)


def test_state_contains_running_and_ended_episodes() -> None:
    new, array, clear = NUMPY
    first, second = (EpisodeCounts(new(np.int64), new(), clear) for _ in range(2))
    first.step()
    first.add(array([2.0, 3.0]))
    first.finished.extend([1], [3.0], [1])
    second.load_state_dict(first.state_dict())
    assert (second.length.tolist(), second.ret.tolist()) == ([1, 1], [2.0, 3.0])
    assert second.finished == first.finished != []


def test_refuse_other_envs_names_first_difference() -> None:
    refuse_other_envs({"format": 2, "num_envs": 3}, {"format": 2, "num_envs": 3})
    with pytest.raises(RunError, match=r"saved with num_envs=3, but num_envs is 4 now; use the settings"):
        refuse_other_envs({"format": 2, "num_envs": 3}, {"format": 2, "num_envs": 4})

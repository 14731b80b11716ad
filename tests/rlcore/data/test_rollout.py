from __future__ import annotations

import torch

from rlcore.data.rollout import Rollout
from rlcore.types import Trajectory


def test_rollout_batches_yields_each_rollout_once() -> None:
    empty = torch.zeros(1, 1)
    steps = Trajectory({}, empty, empty, empty, empty, empty)
    buffer = Rollout()
    assert list(buffer.batches(0)) == []
    buffer.extend(steps, steps)
    (batch,) = buffer.batches(96)
    assert batch.steps is steps and batch.policy_steps == 96
    assert list(buffer.batches(96)) == []

"""The only place that knows the time alignment of `Steps` (drawn in rlcore/types.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.types import Batch


@dataclass
class Transitions:
    """The T steps t → t+1 of a batch.

    Attributes:
        reward: [T, B] float32, of the step.
        terminated: [T, B] bool; the step ended in an absorbing state.
        done: [T, B] bool; the step ended its episode in any way.
        weight: [T, B] float32; 0 for the step that only resets, else 1.
    """

    reward: Tensor
    terminated: Tensor
    done: Tensor
    weight: Tensor


def transitions(batch: Batch) -> Transitions:
    """What the step from each row to the next brought; what arrived with row t+1 belongs to step t."""
    steps, last = batch.steps, batch.last
    terminated = shifted(steps.terminated, last.terminated)
    done = terminated | shifted(steps.truncated, last.truncated)
    reset = steps.terminated | steps.truncated
    return Transitions(shifted(steps.reward, last.reward), terminated, done & ~reset, (~reset).float())


def shifted(rows: Tensor, last: Tensor) -> Tensor:
    """Rows 1..T of [T, B, ...] followed by the arrival [B, ...] after them: [T, B, ...]."""
    return torch.cat([rows[1:], last.unsqueeze(0)])

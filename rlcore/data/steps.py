"""The only place that knows the time alignment of `Steps` (drawn in rlcore/types.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.types import Batch, Steps


@dataclass
class Transitions:
    """The T steps t → t+1 of a batch.

    Attributes:
        reward: [T, B] float32, of the step.
        terminated: [T, B] bool; the step ended in an absorbing state.
        done: [T, B] bool; the step ended its episode in any way.
        weight: [T, B] float32; 0 for the step that only resets (to a row that opens an episode), else 1.
    """

    reward: Tensor
    terminated: Tensor
    done: Tensor
    weight: Tensor


def transitions(batch: Batch) -> Transitions:
    """What the step from each row to the next brought; what arrived with row t+1 belongs to step t."""
    steps, last = batch.steps, batch.last
    # Where rows of one recording follow those of another, no end stands before the row that opens an episode.
    reset = steps.terminated | steps.truncated | shifted(steps.is_first, last.is_first)
    done = shifted(reset, last.terminated | last.truncated) & ~reset
    terminated = shifted(steps.terminated, last.terminated)
    return Transitions(shifted(steps.reward, last.reward), terminated, done, (~reset).float())


def shifted(rows: Tensor, last: Tensor) -> Tensor:
    """Rows 1..T of [T, B, ...] followed by the arrival [B, ...] after them: [T, B, ...]."""
    return torch.cat([rows[1:], last.unsqueeze(0)])


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, for a function of tensors; a carry is not among them."""
    return [
        tensor
        for part in (batch.steps, batch.last)
        for tensor in (*part.obs.values(), part.action, part.reward, part.terminated, part.truncated, part.is_first)
    ] + [*batch.steps.extras.values()]


def batch_of(obs: Sequence[str], extras: Sequence[str], given: Sequence[Tensor]) -> Batch:
    """The batch of `tensors_of`, by the keys of its observations and of what the agent said beside its actions."""
    left = iter(given)

    def part() -> Steps:
        return Steps({key: next(left) for key in obs}, next(left), next(left), next(left), next(left), next(left))

    steps, last = part(), part()
    steps.extras = dict(zip(extras, left, strict=True))
    return Batch(steps, last, 0)

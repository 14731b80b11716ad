"""A whole rollout in batched environments as one CUDA graph: T times acting, the step of the environments, and storing.

    parameters, tensors of the environments, time step, carry, noise  ->  rows [T, B], the same after the rollout

The recorded operations are those of the uncompiled rollout, so both give equal bits. Random numbers are drawn before
each replay, in the order of the uncompiled rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rlcore.compiled.cuda_graph import RecordedStep
from rlcore.compiled.stepping import TensorEnvs
from rlcore.compiled.whole_step import CapturedTensors, Results
from rlcore.functional.noise import Noise
from rlcore.functional.tree import leaves, rebuild
from rlcore.types import Carry, TimeStep

# Carry, observations, is_first, noise -> new carry, agent's action, environments' action, extra outputs.
Act = Callable[[Carry, dict[str, Tensor], Tensor, Any], tuple[Carry, Tensor, Tensor, dict[str, Tensor]]]


@runtime_checkable
class RecordableEnvs(TensorEnvs, Protocol):
    """Batched environments whose steps can be part of a CUDA graph.

    Attributes:
        replaced: number that changes if `advance` must be recorded again, because it contains other constants.
        capturable: False if the steps cannot be part of a CUDA graph, because they read values of tensors.
    """

    replaced: int
    capturable: bool

    def episode(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ended, return and length of the current episode of each environment, all [B]."""
        ...

    def finish_rollout(self, tensors: Any, last: TimeStep, episodes: tuple[Tensor, Tensor, Tensor]) -> None:
        """Set the state after a recorded rollout, whose `Rows` have these tensors, last time step and episodes."""
        ...


class Rows(NamedTuple):
    """Results of a rollout of T steps.

    Attributes:
        steps: time steps 0 to T, with tensors [T+1, B, ...].
        action: actions in the agent's format, [T, B, A].
        extras: extra outputs of the agent, name -> [T, B, ...].
        episodes: ended, return and length after each step, each [T, B].
        carry: recurrent state of the agent after the rollout.
        tensors: tensors of the environments after the rollout.
    """

    steps: TimeStep
    action: Tensor
    extras: dict[str, Tensor]
    episodes: tuple[Tensor, Tensor, Tensor]
    carry: Carry
    tensors: Any


class RecordedRollout:
    """Rollout of T steps that is recorded as a CUDA graph.

    Args:
        act: chooses actions; only operations on tensors.
        agent: module whose parameters and buffers `act` reads.
        envs: the environments.
        length: T.
    """

    def __init__(self, act: Act, agent: nn.Module, envs: RecordableEnvs, length: int) -> None:
        self.act, self.envs, self.length, self._replaced = act, envs, length, envs.replaced
        self._form: Any = None
        self._step = RecordedStep(self._collect, Unchanged(), CapturedTensors([agent]), "the rollout")

    def fits(self, length: int) -> bool:
        """Return True if this is a recording of rollouts with T = `length` and the environments' present constants."""
        return (length, self.envs.replaced) == (self.length, self._replaced)

    def build(self, time_step: TimeStep, carry: Carry, rng: Noise) -> bool:
        """Record the rollout; return False, and log a warning, if it cannot be recorded."""
        return self._step.build((self.envs.tensors(), time_step, carry), rng, False)

    def __call__(self, time_step: TimeStep, carry: Carry, rng: Noise) -> Rows:
        """Collect a rollout that starts with a time step [B] and a carry; the environments do not change."""
        (found,) = self._step((self.envs.tensors(), time_step, carry), rng)
        return rebuild(self._form, iter(found.values()))

    def _collect(self, inputs: Sequence[Any], rng: Any) -> Results:
        """Collect a rollout with other tensors of the environments, and restore their tensors; this is recorded."""
        tensors, time_step, carry = inputs
        before = self.envs.tensors()
        try:
            with torch.no_grad():
                self.envs.take(tensors)
                self._form = self._rows(time_step, carry, rng)
        finally:
            self.envs.take(before)
        return [{str(index): part for index, part in enumerate(leaves(self._form))}]

    def _rows(self, time_step: TimeStep, carry: Carry, rng: Any) -> Rows:
        steps, chosen, episodes = [time_step], [], []
        for _ in range(self.length):
            carry, action, taken, extras = self.act(carry, time_step.obs, time_step.is_first, rng)
            time_step = self.envs.advance(taken)
            steps.append(time_step)
            chosen.append((action, extras))
            episodes.append(self.envs.episode())
        actions, extras = _stack(chosen)
        return Rows(_stack(steps), actions, extras, _stack(episodes), carry, self.envs.tensors())


class Unchanged:
    """`RecordedTensors` of a rollout, which changes no tensor in place."""

    def tensors(self) -> list[Tensor]:
        """Return no tensors."""
        return []

    def memory(self) -> list[int]:
        """Return no indices, because there is no optimizer."""
        return []

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Do nothing."""

    def apart(self, tensors: Iterator[Tensor]) -> Any:
        """Raise NotImplementedError: only gradient steps as machine code use this method."""
        raise NotImplementedError

    def give(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Do nothing."""


def _stack(parts: Sequence[Any]) -> Any:
    """Stack nested structures of tensors [B, ...] to one structure of tensors [T, B, ...]."""
    columns = zip(*map(leaves, parts), strict=True)
    return rebuild(parts[0], iter([torch.stack(column) for column in columns]))

"""Warm-up of compilation: a second training loop with random environments traces all functions of the training.

They can then be compiled in parallel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.compiled import machine_code
from rlcore.compiled.scan import refuse_sum_over_ranks
from rlcore.compiler import Compiler
from rlcore.config.run import AlgorithmConfig
from rlcore.data.staging import FLAGS, from_columns
from rlcore.optim.step import Step
from rlcore.protocols import Learner, VectorEnv
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.train.loop import TrainingLoop
from rlcore.types import Context, Episode, State, TimeStep

log = logging.getLogger(__name__)
EPISODE = 20  # length of an episode in steps
LIMIT = 30.0  # maximum duration in seconds; a longer warm-up would save no time


def warm_up(context: Context[AlgorithmConfig], envs: VectorEnv) -> None:
    """Compile all functions of a training in parallel. Call it if the first function is not in the cache.

    A second training loop is trained in random environments. The warm-up ends when its agent has acted and every kind
    of gradient step was taken, or after 30 s. If the warm-up misses a function, or calls it with other shapes than the
    training, only time is lost, because the training compiles a missing function at its first call. Functions
    that cannot be compiled, or whose compiled results differ, are logged before training starts.

    Args:
        context: context of the training, which does not change.
        envs: environments of the training. They are not stepped; only their spec, number and device are used.
    """
    compiler = context.compiler and replace(context.compiler, made=[])
    apart = replace(context, ranks=NullRanks(context.ranks.rank, context.ranks.size), compiler=compiler)
    with machine_code.side_by_side(), torch.enable_grad():  # the caller, acting, has disabled gradients
        try:
            loop = TrainingLoop(apart, RandomEnvs(envs.spec, envs.num_envs, envs.device, envs.compile))
            end = time.monotonic() + LIMIT

            def stop_early(*_: int) -> None:
                if time.monotonic() >= end or _took_all_steps(loop.learner):
                    raise _Finished

            while loop.policy_steps < loop.plan.total_steps and time.monotonic() < end:
                loop.collect_rollout()
                with suppress(_Finished):  # an update can have a thousand gradient steps; one of each kind is enough
                    loop.take_gradient_steps(stop_early)
                if _took_all_steps(loop.learner) and loop.policy_steps > loop.plan.random_steps:
                    break
        except Exception:  # an algorithm may fail on random observations
            log.debug("the warm-up was aborted", exc_info=True)


class _Finished(Exception):
    """Raised to skip the remaining gradient steps of an iteration, because each kind was already taken."""


def _took_all_steps(learner: Learner) -> bool:
    """Return True if every kind of gradient step was taken."""
    steps = [part for part in learner.components().values() if isinstance(part, Step)]
    return bool(learner.updates) and not any(step.awaited for step in steps)


class NullRanks:
    """`Ranks` without communication, as if this process were one of `size` ranks.

    Args:
        rank: index of this process.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def sum(self, value: Tensor) -> Tensor:
        """Return the tensor unchanged, without communication.

        If `size` > 1 and this method is called inside a function that is traced for compilation, raise RuntimeError,
        as `Ranks.sum` does in training.
        """
        if self.size > 1:
            refuse_sum_over_ranks()
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return a list of `size` references to the value, as if all ranks had the same value."""
        return [value] * self.size


class RandomEnvs(VectorEnv):
    """Environments with random normal observations and rewards, and episodes of EPISODE steps.

    Args:
        spec: spec of an environment.
        num_envs: B.
        device: device of the returned tensors; None: NumPy arrays.
        compile_step: function that compiles the step of the training's environments, if they support this.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        device: torch.device | None,
        compile_step: Callable[[Compiler], None] | None = None,
    ) -> None:
        self.spec, self.num_envs, self._device, self._compile = spec, num_envs, device, compile_step
        self._rng, self._step = np.random.default_rng(0), 0

    @property
    def device(self) -> torch.device | None:
        """Device of the returned tensors; None: NumPy arrays."""
        return self._device

    def compile(self, compiler: Compiler) -> None:
        """Compile the step of the training's environments."""
        if self._compile is not None:
            self._compile(compiler)

    def reset(self) -> TimeStep:
        """Return the first time step of an episode."""
        self._step = 0
        return self._time_step()

    def step(self, action: Any) -> TimeStep:
        """Return the next time step; the action is ignored."""
        self._step = (self._step + 1) % (EPISODE + 1)
        return self._time_step()

    def _time_step(self) -> TimeStep:
        def every(true: bool) -> np.ndarray:
            return np.full(self.num_envs, true)

        opens, rng = self._step == 0, self._rng
        reward = rng.standard_normal(self.num_envs, np.float32) * (not opens)
        flags = (reward, every(False), every(self._step == EPISODE), every(opens))
        rows = {f"obs/{key}": self._draw(part) for key, part in self.spec.obs.items()} | dict(
            zip(FLAGS, flags, strict=True)
        )
        return from_columns(
            {key: torch.from_numpy(value).to(self.device) for key, value in rows.items()} if self.device else rows
        )

    def _draw(self, part: ArraySpec) -> np.ndarray:
        """Return random observations [B, *shape] in the dtype of a key."""
        shape, dtype = (self.num_envs, *part.shape), np.dtype(part.dtype)
        if part.n is not None or dtype.kind in "iub":
            return (part.start + self._rng.integers(0, part.n or 2, shape)).astype(dtype)
        return self._rng.standard_normal(shape).astype(dtype)

    def pop_episodes(self) -> list[Episode]:
        """Return []; episodes are not recorded."""
        return []

    def boundary(self) -> TimeStep | None:
        """Return None: a checkpoint does not truncate episodes."""
        return None

    def state_dict(self) -> State:
        """Return {}; there is no state to save."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing; there is no state to load."""

    def close(self) -> None:
        """Do nothing; there are no resources to release."""

"""A rehearsal: another learner in made-up environments, so that all functions are known before the first is built."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.compiled import machine_code
from rlcore.compiled.scan import refuse_sum_over_ranks
from rlcore.data.staging import FLAGS, from_columns
from rlcore.optim.step import Step
from rlcore.protocols import VectorEnv
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.train.loop import Loop
from rlcore.types import Context, Episode, Ranks, State, TimeStep

log = logging.getLogger(__name__)
EPISODE = 20  # steps


LIMIT = 30.0  # seconds: it is to save some


def warm_up(context: Context, envs: VectorEnv) -> None:
    """Have all functions of a training built side by side, where the first one that it needs is not there.

    It goes on until the agent has acted and taken each kind of step, for half a minute at most. What it asks for in
    other shapes than the training, what fails in it or comes later costs only time: the training builds what it misses
    when it meets it. What cannot be built, or computes something else, is logged here, before anything is learned.

    Args:
        context: of the training, which keeps its own learner, streams and environments as they are.
        envs: of the training; their spec, number and device count.
    """
    compiler = context.compiler and replace(context.compiler, made=[])
    apart = replace(context, ranks=NullRanks(context.ranks), compiler=compiler)
    with machine_code.side_by_side(), torch.enable_grad():  # acting, which asks for it, wants no gradient
        try:
            loop = Loop(apart, RandomEnvs(envs.spec, envs.num_envs, getattr(envs, "device", None)))
            end = time.monotonic() + LIMIT

            def leave_early(*_: int) -> None:
                if time.monotonic() >= end or _has_learned(loop):
                    raise _Known

            while loop.policy_steps < loop.plan.total_steps and time.monotonic() < end:
                loop.collect()
                with suppress(_Known):  # an update may owe a thousand gradient steps, and one of a kind will do
                    loop.update(leave_early)
                if _has_learned(loop) and loop.policy_steps > loop.plan.random_steps:
                    break
        except Exception:  # of somebody's algorithm, over observations that no environment gave
            log.debug("the rehearsal was broken off", exc_info=True)


class _Known(Exception):
    """The rest of an update brings nothing new to light."""


def _has_learned(loop: Loop) -> bool:
    """Tell whether each kind of gradient step was taken."""
    steps = [part for part in loop.learner.components().values() if isinstance(part, Step)]
    return bool(loop.learner.updates) and not any(step.awaited for step in steps)


class NullRanks:
    """Ranks of the same number that exchange nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size = ranks.rank, ranks.size

    def sum(self, value: Tensor) -> Tensor:
        """Return the tensor itself; a traced function that sums over several ranks is refused, as in the training."""
        if self.size > 1:
            refuse_sum_over_ranks()
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value for each."""
        return [value] * self.size


class RandomEnvs:
    """Environments that draw everything: normal observations and rewards, episodes of EPISODE steps.

    Args:
        spec: of one.
        num_envs: B.
        device: where arrivals lie, as tensors; None = NumPy.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device | None) -> None:
        self.spec, self.num_envs, self.device = spec, num_envs, device
        self._rng, self._step = np.random.default_rng(0), 0

    def reset(self) -> TimeStep:
        """Time step at which an episode opens."""
        self._step = 0
        return self._arrival()

    def step(self, action: Any) -> TimeStep:
        """Next arrival, whatever the action."""
        self._step = (self._step + 1) % (EPISODE + 1)
        return self._arrival()

    def _arrival(self) -> TimeStep:
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
        """Observations [B, *shape] of a key's dtype."""
        shape, dtype = (self.num_envs, *part.shape), np.dtype(part.dtype)
        if part.n is not None or dtype.kind in "iub":
            return (part.start + self._rng.integers(0, part.n or 2, shape)).astype(dtype)
        return self._rng.standard_normal(shape).astype(dtype)

    def pop_episodes(self) -> list[Episode]:
        """Nobody asks."""
        return []

    def boundary(self) -> TimeStep | None:
        """Nothing ends here."""
        return None

    def state_dict(self) -> State:
        """There is none."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing is held."""

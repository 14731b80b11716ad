"""A rehearsal: another learner in still environments, so that all functions are known before the first is built."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.arrivals import FLAGS, from_columns
from rlcore.errors import RunError
from rlcore.optim import machine_code
from rlcore.spec import EnvSpec
from rlcore.train.loop import Loop
from rlcore.types import Arrival, Context, Episode, Ranks, State, VectorEnv

log = logging.getLogger(__name__)


def rehearse(context: Context, envs: VectorEnv) -> None:
    """Have all functions of a training built side by side, where the first one that it needs is not there.

    It goes on until the agent has acted and learned. What it asks for in other shapes than the training, or what fails
    in it, costs only time: the training builds what it misses when it meets it.

    Args:
        context: of the training, which keeps its own learner, streams and environments as they are.
        envs: of the training; their spec, number and device count.

    Raises:
        RunError: the compiler failed, or the cache cannot be written.
    """
    apart = replace(context, ranks=Mute(context.ranks), functions=[])
    try:
        with machine_code.side_by_side():
            loop = Loop(apart, Still(envs.spec, envs.num_envs, getattr(envs, "device", None)))
            plan = loop.plan
            while loop.policy_steps < plan.total_steps:
                loop.collect()
                loop.update()
                if loop.learner.updates and loop.policy_steps > plan.random_steps:
                    break
    except RunError:
        raise
    except Exception:  # of somebody's algorithm, over observations that are all zero
        log.debug("no rehearsal", exc_info=True)


class Mute:
    """Ranks of the same number that exchange nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size = ranks.rank, ranks.size

    def sum(self, value: Tensor) -> Tensor:
        """The tensor itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value for each."""
        return [value] * self.size


class Still:
    """Environments whose observations and rewards are zero and whose episodes never end.

    Args:
        spec: of one.
        num_envs: B.
        device: where arrivals lie, as tensors; None = NumPy.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device | None) -> None:
        self.spec, self.num_envs = spec, num_envs
        rows = {
            f"obs/{key}": np.full((num_envs, *part.shape), part.start, part.dtype) for key, part in spec.obs.items()
        }
        rows |= {flag: np.zeros(num_envs, np.float32 if flag == "reward" else bool) for flag in FLAGS}
        on_device = {key: torch.from_numpy(value).to(device) for key, value in rows.items()} if device else rows
        self._arrival = from_columns(on_device)

    def reset(self) -> Arrival:
        """Zeros."""
        return self._arrival

    def step(self, action: Any) -> Arrival:
        """Zeros again."""
        return self._arrival

    def pop_episodes(self) -> list[Episode]:
        """None ends."""
        return []

    def boundary(self) -> Arrival | None:
        """The arrival as it is."""
        return self._arrival

    def state_dict(self) -> State:
        """There is none."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing is held."""

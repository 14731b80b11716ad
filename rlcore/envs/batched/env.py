"""Base class of batched environments.

class Walk(BatchedEnv):
    observation_space = spaces.Box(-inf, inf, (1,))
    action_space = spaces.Discrete(2)
    max_episode_steps = 100

    def reset(self, config):
        self.state = {"place": self.random.uniform(-1.0, 1.0)}
        return self.state["place"][:, None]

    def step(self, action):
        place = self.state["place"] + 0.1 * (2 * action - 1)
        self.state = {"place": place}
        return place[:, None], -place.abs(), place.abs() > 2.0
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched.random import BatchedRandom
from rlcore.errors import UserError

Obs = Tensor | dict[str, Any]  # [B, ...], or a nested dict of such tensors
# obs, reward [B], terminated [B] bool, truncated [B] bool (only with the tier "boundary"); an environment without ends
# returns only obs and reward
Transition = tuple[Obs, Tensor, Tensor] | tuple[Obs, Tensor] | tuple[Obs, Tensor, Tensor, Tensor]


class BatchedEnv(ABC):
    """B copies of an environment that are computed together by tensor operations on one device.

    A subclass defines the two spaces, `reset` and `step`. It neither counts steps nor resets single copies: the caller
    resets all copies together, and takes the new state only for those whose episode has ended.

    Everything that the next step depends on must be in `state`, except the random numbers, which are drawn from
    `random` only, and the values in `config`. Row b of every tensor must depend only on the rows b of `state`,
    `config`, action and random numbers. `reset` and `step` must not change tensors in place, and must not read a
    tensor's value (for example by `if`, `float()` or `.any()` in a condition), because this would make a GPU wait.

    A class that runs the code of another library may not be able to follow these rules. It declares this with the
    attributes `capturable` and `tier`.

    Args:
        num_envs: B; also an attribute.
        device: device of all tensors; also an attribute.

    Attributes:
        observation_space: space of one copy; a Box, Discrete or MultiDiscrete, or a nested Dict of them.
        action_space: space of the action of one copy; it can be a Dict or Tuple, also nested.
        max_episode_steps: an episode is truncated after this number of steps; None: no limit.
        max_num_envs: largest B; None: no limit.
        endless: True if episodes have no end: `step` then returns only observations and rewards.
        mask_bindings: key of an action mask -> the sub-action to which it belongs (`rlcore.envs.spaces.bind`).
        capturable: False if `reset` or `step` reads values of tensors, for example because a simulator of another
            library computes on the CPU. The step is then neither compiled nor part of a CUDA graph, and make-env plays
            fewer steps, because they may be slow.
        tier: "snapshot" if `state` contains everything that the next step depends on. "boundary" if a simulator keeps
            state that cannot be saved: every scheduled checkpoint then truncates the unfinished episodes, and calls
            `reset`. Such a class is not capturable. It resets ended copies itself: the step after the end of an
            episode ignores the action and returns the first observation of the next episode. `step` returns a fourth
            value, truncated [B]. The constructor has the argument `max_episode_steps`, and `reset` makes all later
            episodes depend only on random numbers from `random`.
        config: instance of `Config`, the values of the current episodes; each field is a number, or a tensor [B] of one
            number per copy.
        state: name -> [B, ...], the state of the copies.
        random: source of all random numbers.
    """

    observation_space: ClassVar[spaces.Space[Any]]
    action_space: ClassVar[spaces.Space[Any]]
    max_episode_steps: ClassVar[int | None] = None
    max_num_envs: ClassVar[int | None] = None
    endless: ClassVar[bool] = False
    mask_bindings: ClassVar[Mapping[str, Any]] = {}
    capturable: ClassVar[bool] = True
    tier: ClassVar[str] = "snapshot"

    @dataclass(frozen=True)
    class Config:
        """Parameters of the task with their defaults, which `env.config` can change; a subclass may have none."""

    config: Any
    state: dict[str, Tensor]
    random: BatchedRandom

    def __init_subclass__(cls) -> None:
        """Make `Config` a dataclass, if it is a class with annotated fields that is not a dataclass yet.

        Raises UserError if the class has the attribute `max_horizon` of rl8, which would have no effect.
        """
        if "max_horizon" in cls.__dict__:
            raise UserError(
                f"{cls.__name__}.max_horizon: this attribute of rl8 has no effect; rename it to max_episode_steps, the "
                "number of steps after which an episode is truncated (endless environments: most steps between resets)"
            )
        own = cls.__dict__.get("Config")
        if own is not None and "__dataclass_fields__" not in vars(own):
            cls.Config = dataclass(frozen=True)(own)

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        self.num_envs, self.device, self.config = num_envs, torch.device(device), self.Config()

    @abstractmethod
    def reset(self, config: Any) -> Obs:
        """Set `state` to the start of an episode in every copy; return the first observations.

        Args:
            config: instance of `Config`; each field is a number, or a tensor [B] of one number per copy.

        Returns:
            Observations [B, ...], or a nested dict of them, in the dtypes of `observation_space`.
        """

    @abstractmethod
    def step(self, action: Any) -> Transition:
        """Take actions and set `state` to the next state of every copy.

        Args:
            action: [B, *shape], in the dtype of `action_space`; for a Dict or Tuple, a dict or tuple of such tensors.

        Returns:
            Observations; rewards [B]; and, unless `endless` is True, [B] bool, True if the episode ended in an
            absorbing state. With the tier "boundary", also [B] bool, True if the episode was cut short.
        """

    def close(self) -> None:  # noqa: B027  most environments have nothing to close
        """Release the resources of a simulator, such as its processes."""

    def ones(self, value: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor [B] of one value, on the device of the environment."""
        return torch.full((self.num_envs,), value, dtype=dtype, device=self.device)


def column(value: float | Tensor) -> float | Tensor:
    """Return a field of `BatchedEnv.config` in a shape that can multiply a tensor [B, n]."""
    return value[:, None] if isinstance(value, Tensor) else value

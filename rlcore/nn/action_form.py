"""Conversion between the actions of an agent (tensors [B, A]) and the actions that an environment takes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlcore.spec import ActionSpec


class ActionForm:
    """Conversion between an agent's actions [B, A] and the environment's actions [B, *shape].

    Args:
        action: action space of the environment.
        kind: format of the agent's actions. "discrete": indices of choices, counted from 0. "normal": values in the
            environment's unit, which `to_env` clips to the bounds. "tanh_normal": values x that `to_env` maps to
            tanh(x), scaled from [-1, 1] to the bounds. "scaled": values in [-1, 1], which `to_env` scales to the
            bounds; dimensions with an infinite bound are not scaled.
    """

    def __init__(self, action: ActionSpec, kind: str) -> None:
        self.action, self.kind = action, kind
        # These tensors are not buffers of a module, because a conversion to bfloat16 would round the bounds.
        self._constants: dict[torch.device, tuple[Tensor, ...]] = {}
        self._stretches: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._fixed: dict[torch.device, tuple[Tensor, Tensor]] = {}
        # Lower and upper bounds of the elements that the agent sets.
        self._sides = [[side[i] for i in action.open] for side in (action.low, action.high)]
        self._has_closed = len(action.open) < len(action.low)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape].

        The result has the dtype of the environment's action space and is within its bounds.
        """
        if self.kind == "discrete" and not any(self.action.start):  # no constant tensor in a compiled trace
            return action.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)
        start, low, high = self._bounds(action.device)
        if self.kind == "discrete":
            values = action + start
        elif self.kind == "tanh_normal":
            values = low + (action.double().tanh() + 1) / 2 * (high - low)
        elif self.kind == "scaled":
            center, half = self._stretch(action.device)
            values = (center + action.double() * half).clamp(low, high)
        else:
            values = action.double().clamp(low, high)
        if self._has_closed:
            index, fixed = self._closed(action.device)
            values = fixed.expand(len(values), -1).index_copy(1, index, values)
        return values.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]; the inverse of `to_env`.

        The actions must be within the bounds of the action space. The result is int64 for discrete actions, otherwise
        float32. With `kind="tanh_normal"`, an action on a bound would correspond to an infinite value; it is first
        moved inside the bounds by 1e-7 times half of their distance.
        """
        start, low, high = self._bounds(action.device)
        values = action.flatten(1) if action.ndim > 1 else action.unsqueeze(1)
        if self._has_closed:
            values = values.index_select(1, self._closed(action.device)[0])
        if self.kind == "discrete":
            return values.long() - start
        if self.kind == "normal":
            return values.float()
        if self.kind == "scaled":
            center, half = self._stretch(action.device)
            return ((values - center) / half).float()
        inside = (values - low) / (high - low) * 2 - 1
        return inside.clamp(-1 + 1e-7, 1 - 1e-7).atanh().float()

    def _bounds(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return three tensors: `start`, `low` and `high`.

        `start` [A] int64 contains the smallest values of discrete actions; it is empty for continuous actions. `low`
        and `high` [A] float64 contain the bounds of continuous actions; they are empty for discrete actions.
        """
        if device not in self._constants:
            start = torch.tensor(self.action.start, dtype=torch.int64, device=device)
            sides = (torch.tensor(side, dtype=torch.float64, device=device) for side in self._sides)
            self._constants[device] = (start, *sides)
        return self._constants[device]

    def _stretch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return, for each dimension, the center of the bounds and half of their distance, [A] float64 each.

        For a dimension with an infinite bound, the center is 0 and half of the distance is 1.
        """
        if device not in self._stretches:
            _, low, high = self._bounds(device)
            sides = zip(*self._sides, strict=True)
            bounded = torch.tensor([all(map(math.isfinite, pair)) for pair in sides], device=device)
            center = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
            self._stretches[device] = center, torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        return self._stretches[device]

    def _closed(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return two tensors for action spaces in which some elements have only one possible value (low = high).

        The agent's actions do not contain such elements. The first tensor [A] contains the indices of all other
        elements. The second tensor [1, elements] contains the lower bound of every element, which is the value of the
        elements with only one possible value.
        """
        if device not in self._fixed:
            fixed = torch.tensor([self.action.low], dtype=torch.float64, device=device)
            self._fixed[device] = torch.tensor(self.action.open, device=device), fixed
        return self._fixed[device]

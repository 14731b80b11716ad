"""Actions as an agent says them, and in the environment's own form and bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlcore.spec import ActionSpec


class ActionForm:
    """The one convention between an agent's actions [B, A] and its environment's [B, *shape].

    Args:
        action: the environment's action.
        kind: "discrete", "normal" (as it is, clipped into the bounds), "tanh_normal" (before a tanh onto the bounds),
            or "scaled" (-1 to 1 stretched onto them; a dimension without both bounds stays as it is).
    """

    def __init__(self, action: ActionSpec, kind: str) -> None:
        self.action, self.kind = action, kind
        # No buffers: bfloat16 would round the bounds.
        self._constants: dict[torch.device, tuple[Tensor, ...]] = {}
        self._stretches: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._fixed: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._sides = [[side[i] for i in action.open] for side in (action.low, action.high)]  # of the open elements
        self._has_closed = len(action.open) < len(action.low)

    def to_env(self, action: Tensor) -> Tensor:
        """Actions [B, A] -> [B, *shape] of the environment's dtype: started, squashed, stretched or clipped."""
        if self.kind == "discrete" and not any(self.action.start):  # no constant in a trace, which serves any seed
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
        """[B, *shape] within the bounds -> the [B, A] that `to_env` makes it of: int64 indices, or float32.

        On the edge of a squashed action, which no finite one reaches, the largest that float32 tells from it.
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
        """start [A] int64, low and high [A] float64; of the kind of action that there is."""
        if device not in self._constants:
            start = torch.tensor(self.action.start, dtype=torch.int64, device=device)
            sides = (torch.tensor(side, dtype=torch.float64, device=device) for side in self._sides)
            self._constants[device] = (start, *sides)
        return self._constants[device]

    def _stretch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Values that 0, and the way from 0 to 1, become: [A] float64 each."""
        if device not in self._stretches:
            _, low, high = self._bounds(device)
            sides = zip(*self._sides, strict=True)
            bounded = torch.tensor([all(map(math.isfinite, pair)) for pair in sides], device=device)
            center = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
            self._stretches[device] = center, torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        return self._stretches[device]

    def _closed(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Indices [A] of the elements that agents decide, and a value [1, elements] for each of the others."""
        if device not in self._fixed:
            fixed = torch.tensor([self.action.low], dtype=torch.float64, device=device)
            self._fixed[device] = torch.tensor(self.action.open, device=device), fixed
        return self._fixed[device]

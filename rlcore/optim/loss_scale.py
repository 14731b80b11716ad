"""Scale of a loss under float16, whose small gradients would be lost without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCALE, GROWTH = 2.0**16, 2000  # as in torch.amp.GradScaler: first scale, steps until it doubles


class LossScale:
    """A factor of losses, halved where a gradient overflows and doubled after a while without."""

    def __init__(self) -> None:
        self.value, self.growing = torch.tensor(SCALE), 0

    def multiply(self, total: Tensor) -> Tensor:
        """A loss, scaled."""
        return total.float() * self.value.to(total.device)

    def divide(self, gradient: Tensor) -> None:
        """Make a gradient that of the loss itself."""
        gradient.div_(self.value.to(gradient))

    def adapt(self, norm: Tensor) -> bool:
        """Adapt it to a gradient's norm; whether the step may be taken, for an overflow is no fault."""
        finite = bool(norm.isfinite())
        self.growing = self.growing + 1 if finite else 0
        if not finite:
            self.value = self.value / 2
        elif self.growing == GROWTH:
            self.value, self.growing = self.value * 2, 0
        return finite

    def state_dict(self) -> dict[str, Any]:
        """Value and the steps since the last overflow."""
        return {"scale": self.value, "growing": self.growing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.value, self.growing = state["scale"].clone(), state["growing"]

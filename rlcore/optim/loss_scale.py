"""Loss scaling for float16 networks: without it, small gradients would be rounded to 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCALE, GROWTH = 2.0**16, 2000  # as in torch.amp.GradScaler: first scale, steps until it doubles


class LossScale:
    """Loss scale that is halved if a gradient overflows and doubled after 2,000 steps without overflow."""

    def __init__(self) -> None:
        self.value, self.growing = torch.tensor(SCALE), 0

    def multiply(self, total: Tensor) -> Tensor:
        """Return the scaled loss."""
        return total.float() * self.value.to(total.device)

    def divide(self, gradient: Tensor) -> None:
        """Divide a gradient by the scale, in place."""
        gradient.div_(self.value.to(gradient))

    def adapt(self, norm: Tensor) -> bool:
        """Adapt the scale to a gradient norm; return False if the gradient overflowed and the step must be skipped."""
        finite = bool(norm.isfinite())
        self.growing = self.growing + 1 if finite else 0
        if not finite:
            self.value = self.value / 2
        elif self.growing == GROWTH:
            self.value, self.growing = self.value * 2, 0
        return finite

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the number of steps since the last overflow."""
        return {"scale": self.value, "growing": self.growing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.value, self.growing = state["scale"].clone(), state["growing"]

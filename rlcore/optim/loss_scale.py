"""Dynamic loss scaling for training in float16.

The loss is multiplied by a scale, so that small gradients are not rounded to 0 in float16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCALE, GROWTH = 2.0**16, 2000  # as in torch.amp.GradScaler: first scale, steps until it doubles


class LossScale:
    """Dynamic loss scale: halved if a gradient overflows, and doubled after 2,000 optimizer steps without overflow."""

    def __init__(self) -> None:
        self.value, self.growing = torch.tensor(SCALE), 0

    def multiply(self, total: Tensor) -> Tensor:
        """Return the loss `total` [] in float32, multiplied by the scale."""
        return total.float() * self.value.to(total.device)

    def divide(self, gradient: Tensor) -> None:
        """Divide the gradient of a scaled loss by the scale, in place."""
        gradient.div_(self.value.to(gradient))

    def adapt(self, norm: Tensor) -> bool:
        """Halve or double the scale if necessary; return False if the optimizer step must be skipped.

        A `norm` [] of the gradient that is not finite means that the gradient overflowed.
        """
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
        """Restore the state returned by `state_dict`."""
        self.value, self.growing = state["scale"].clone(), state["growing"]

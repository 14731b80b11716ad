"""Target networks: slow copies of a module that an optimizer trains."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlcore.optim.flat import FlatParameters
from rlcore.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from rlcore.types import Context


class Target:
    """A copy of a module, moved towards it by `follow`: θ' ← θ' + τ (θ - θ') (Lillicrap et al. 2015, arXiv:1509.02971).

    Args:
        module: that is followed, not trained yet.
        context: whose device and precision the copy is brought to.
    """

    # module: the copy; a loss that passes through it finds no parameter to train

    def __init__(self, module: nn.Module, context: Context) -> None:
        fabric = context.fabric
        self.module: Any = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(module)))
        self.parameters = FlatParameters(self.module)
        self.parameters.trained = False
        self.module.requires_grad_(False)

    @torch.no_grad()
    def follow(self, optimizer: Optimizer, tau: float | Tensor) -> None:
        """Take the share τ, [] in [0, 1], of the way to what an optimizer trains.

        Buffers, such as running moments, become those of its module.
        """
        optimizer.parameters.gather()  # another optimizer may have trained some of them since
        slow, fast = self.parameters.vector, optimizer.parameters.vector
        self.parameters.take(slow + tau * (fast - slow))
        for mine, theirs in zip(self.module.modules(), optimizer.module.modules(), strict=True):
            for key, value in theirs._buffers.items():  # pyright: ignore[reportPrivateUsage]
                mine._buffers[key] = None if value is None else value.clone()

    def state_dict(self) -> dict[str, Any]:
        """The copy's parameters and buffers."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.module.load_state_dict(state)

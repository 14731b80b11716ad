"""Optimizer class of the user, or of torch.optim, as an update rule: `optimizer.name=package.module:Class`.

The class is called as `Class(parameters, lr=lr, **optimizer.settings)`. All parameters are one vector, so it must
update every element independently of the others, as Adam and SGD do. Besides the number of the step, its state must
consist of tensors of the size of the parameters. Each optimizer step creates an object of the class with the stored
state. The learning rate and the number of the step are read from tensors, so such a gradient step is not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore import plugins
from rlcore.errors import UserError
from rlcore.functional.own_code import explaining
from rlcore.optim.optimizer_keys import OptimizerConfig

KEY = "optimizer.name"
STEP = "step"  # name of the number of the step in the state of torch's optimizers
Slots = dict[str, Tensor]


class OwnRule:
    """Update rule that calls an optimizer class; its methods are the functions of a `rlcore.optim.rules.Rule`.

    Args:
        target: value of `optimizer.name`, `package.module:Class`.

    Raises:
        UserError: The class is not an optimizer of a named plugin or of torch.optim.
    """

    def __init__(self, target: str) -> None:
        self.place = f"{KEY}={target}"
        module, _, name = target.partition(":")
        found: Any = getattr(torch.optim, name, None) if module == "torch.optim" else plugins.member(KEY, target)
        if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
            raise UserError(f"{self.place}: must be a subclass of torch.optim.Optimizer; correct the name")
        self.own: Any = found

    def slots(self, config: OptimizerConfig) -> Sequence[str]:
        """Return the names of the tensors in the optimizer's state, after checking that the class can be used."""
        failed, fix = f"a step failed with settings={config.settings}", "correct the class or optimizer.settings"
        with explaining(self.place, failed, fix):
            names, together = self._try(config, slice(None))
            parts = [self._try(config, part)[1] for part in (slice(0, 2), slice(2, None))]
        if not torch.allclose(together, torch.cat(parts)):
            raise UserError(
                f"{self.place}: it does not update each element of the parameters independently, but they are one "
                "vector here; use another optimizer"
            )
        return names

    def update(
        self, config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: Tensor, lr: Tensor
    ) -> tuple[Tensor, Slots]:
        """Return parameters and state after one step, as new tensors; arguments are those of `rules.update`."""
        own, after = self._step(config, vector, gradient, state, int(count), float(lr))
        return own, {name: after[name] for name in state}

    @torch.enable_grad()
    def _step(
        self, config: OptimizerConfig, vector: Tensor, gradient: Tensor, state: Slots, count: int, lr: float
    ) -> tuple[Tensor, dict[str, Any]]:
        parameter = nn.Parameter(vector.detach().clone())
        parameter.grad = gradient.detach().clone()
        optimizer = self.own([parameter], lr=lr, **config.settings)
        if count > 1:  # the class initializes its state in the first step
            optimizer.state[parameter] = {name: slot.clone() for name, slot in state.items()}
            optimizer.state[parameter][STEP] = torch.tensor(float(count - 1))
        optimizer.step()
        return parameter.detach(), dict(optimizer.state[parameter])

    def _try(self, config: OptimizerConfig, part: slice) -> tuple[list[str], Tensor]:
        """Take two steps on some elements of an example; return the names of the slots, and the parameters."""
        vector, gradient = torch.tensor([0.5, -1.0, 2.0, 3.0])[part], torch.tensor([1.0, -2.0, 0.1, 30.0])[part]
        names, state = list[str](), Slots()
        for count in (1, 2):
            vector, after = self._step(config, vector, gradient * count, state, count, 1e-2)
            names = [name for name, x in after.items() if isinstance(x, Tensor) and x.shape == vector.shape]
            if other := [name for name in after if name not in (*names, STEP) and after[name] is not None]:
                raise UserError(
                    f"{self.place}: its state {other[0]!r} is not a tensor of the size of the parameters; use another "
                    "optimizer"
                )
            state = {name: after[name] for name in names}
        return names, vector

"""Optimizer: the gradient of a loss, its clipping and the step, through Fabric (precision lives here)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlcore.config.schema import arg
from rlcore.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Inputs -> the scalar to minimise, and means for the log (no gradient flows through them).
Loss = Callable[..., tuple[Tensor, Tensor]]

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
# Settings that not every optimizer has.
OPTIONAL = ("betas", "alpha", "centered", "momentum", "dampening", "nesterov", "amsgrad", "eps")
# Decorated for torch.compile: the first call of any of them imports the compiler, for as long as torch itself.
DECORATED = ("step", "zero_grad", "add_param_group", "state_dict", "load_state_dict")


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer and its settings; keys that the chosen one does not have must be left at null."""

    name: str = arg("adam", "optimizer", choices=tuple(OPTIMIZERS))
    lr: float = arg(1e-3, "learning rate", above=0)
    eps: float | None = arg(1e-4, "added to the denominator (Adam, RMSprop)", above=0)
    weight_decay: float = arg(0.0, "L2 penalty (decoupled for adamw)", low=0)
    betas: tuple[float, float] | None = arg((0.9, 0.999), "decay of both moments (Adam)", low=0, high=1)
    alpha: float | None = arg(None, "decay of the squared gradient (RMSprop, 0.99)", low=0, high=1)
    centered: bool | None = arg(None, "normalise by the variance (RMSprop)")
    momentum: float | None = arg(None, "momentum (SGD, RMSprop)", low=0)
    dampening: float | None = arg(None, "dampening of the momentum (SGD)", low=0)
    nesterov: bool | None = arg(None, "Nesterov momentum (SGD)")
    amsgrad: bool | None = arg(None, "AMSGrad (Adam)")

    def check(self, prefix: str) -> None:
        """Refuse a setting that the chosen optimizer does not have; `prefix` is the group's place, for messages."""
        known = OPTIMIZERS[self.name].__init__.__code__.co_varnames
        for key in OPTIONAL:
            value = getattr(self, key)
            default = OptimizerConfig.__dataclass_fields__[key].default
            if value is not None and key not in known and value != default:
                raise UserError(f"{prefix}{key}={value}: {self.name} has no {key}; set it to null")
        if self.betas is not None and max(self.betas) >= 1:
            raise UserError(f"{prefix}betas={list(self.betas)}: each must be below 1")
        if self.nesterov and (not self.momentum or self.dampening):
            raise UserError(f"{prefix}nesterov=true: needs {prefix}momentum above 0 and no dampening")

    def make(self, module: nn.Module, fused: bool = True) -> torch.optim.Optimizer:
        """The torch optimizer over all parameters of `module`, in one group.

        `fused` takes one kernel for the whole step, where torch has it. Not with a scaled loss: such a kernel undoes
        the scale by itself, after the gradient was clipped.
        """
        cls = OPTIMIZERS[self.name]
        known = cls.__init__.__code__.co_varnames
        settings = {k: getattr(self, k) for k in OPTIONAL if k in known and getattr(self, k) is not None}
        if "fused" in known:
            settings["fused"] = fused
        return eager(cls)(module.parameters(), lr=self.lr, weight_decay=self.weight_decay, **settings)


def eager(cls: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """`cls` with its methods freed from those decorators; its step never records a gradient."""
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in DECORATED}
    return type(cls.__name__, (cls,), methods | {"step": torch.no_grad()(methods["step"])})


class Optimizer:
    """Owns the gradients of one loss with respect to one module: `accumulate` them, then `apply` or `drop` them.

    Args:
        module: its parameters are trained.
        loss: of the module, computed with its parameters as they are.
        config: which torch optimizer.
        max_grad_norm: global norm at which gradients are clipped; 0 = never.
        fabric: gives precision (autocast, loss scaling) and device.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, config: OptimizerConfig, max_grad_norm: float, fabric: Fabric
    ) -> None:
        self.loss, self.fabric = loss, fabric
        self.max_grad_norm = max_grad_norm
        # float16 alone: steps with an overflow are skipped and the scale lowered, so such a gradient is no fault.
        self.scales_loss = getattr(fabric.strategy.precision, "scaler", None) is not None
        self.wrapped, self.torch_optimizer = fabric.setup(module, config.make(module, fused=not self.scales_loss))

    def accumulate(self, *inputs: Any) -> Tensor:
        """Add the gradient of the loss of these inputs to what the next `apply` uses; returns the loss's means."""
        loss, means = self.loss(*inputs)
        self.fabric.backward(loss)
        return means

    def apply(self) -> Tensor:
        """Clip and step. Returns the gradient's global norm before clipping, [] on the device, never synchronised."""
        norm = self.fabric.clip_gradients(
            self.wrapped,
            self.torch_optimizer,
            max_norm=self.max_grad_norm or float("inf"),
            error_if_nonfinite=False,  # the learner checks once an update; fp16 scaling skips such steps by itself
        )
        self.torch_optimizer.step()
        self.torch_optimizer.zero_grad()
        assert norm is not None
        return norm

    def drop(self) -> None:
        """Forget the accumulated gradient."""
        self.torch_optimizer.zero_grad()

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next steps."""
        for group in self.torch_optimizer.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Moments and counters of the torch optimizer, and the loss scale of fp16."""
        precision = self.fabric.strategy.precision
        return {"optimizer": self.torch_optimizer.optimizer.state_dict(), "precision": precision.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.torch_optimizer.optimizer.load_state_dict(state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])

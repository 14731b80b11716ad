"""Optimizer: computes and clips the gradient of a loss, and updates the parameters of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rlcore.errors import UserError
from rlcore.functional.stats import LossTerms, LossTermsAux
from rlcore.optim import rules
from rlcore.optim.clipping import CLIPPING
from rlcore.optim.compilation import compile_gradient
from rlcore.optim.flat import FlatParameters, Gradient, LossScale
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.parameter_groups import GroupedRule, group_of

if TYPE_CHECKING:
    from rlcore.config.run import AlgorithmConfig
    from rlcore.types import Context

Loss = Callable[..., LossTerms | LossTermsAux]  # loss function of a minibatch's tensors


class LossOutput(NamedTuple):
    """Results of `Optimizer.minimize`.

    Attributes:
        metrics: name -> [], means to log.
        aux: name -> [...], further outputs of the loss function, for example tensors that another loss needs.
        norm: [], norm of the gradient before clipping.
    """

    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]
    norm: Tensor


class Optimizer:
    """Optimizer that trains one module on one loss.

    `accumulate` adds the gradient of a minibatch. `apply` takes an optimizer step with the accumulated gradient; `drop`
    discards it. For a step on a single minibatch, `minimize` calls `accumulate` and `apply`.

    Only the parameters of `module` are updated, even if the loss also depends on other modules. Gradients and sample
    weights are summed over the minibatches of a step and over all ranks. Then the gradient is divided by the summed
    weight (see `reduction`) and clipped.

    The parameters are stored in one vector and updated in place; so are the gradient and each tensor of the optimizer
    state. Without a compiled `Step`, for example with several ranks, only the computation of the gradient is compiled,
    for the shapes of the first minibatch. With mixed precision, the loss is computed with autocast.

    Args:
        module: module to train; it is moved to the device of the run and converted to the precision of the run.
        loss: function of the inputs of `accumulate`. It returns the loss summed over samples [], the sum of the sample
            weights [], the means to log (name -> []), and optionally further tensors (name -> [...]).
        config: update rule and its settings.
        context: provides devices and precision (`fabric`), ranks and the compiler.
        max_grad_norm: maximum gradient norm; 0 = no clipping. `config.clip_norm` selects which norm is limited: that of
            the gradient of all parameters together ("global"), that of each parameter tensor ("tensor"), or that of
            each parameter tensor divided by the norm of its parameters ("adaptive"), or that of a plugin's rule
            (`rlcore.optim.clipping.register`).
        reduction: "mean" divides the gradient by the summed sample weight, "sum" does not.
        uses: other modules that the loss reads. They are moved to the same device, and a compiled gradient has their
            parameters as inputs.

    Raises:
        UserError: If a parameter group of the config matches no parameter, or if `clip_norm` is set although
            `max_grad_norm` is 0.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        config: OptimizerConfig,
        context: Context[AlgorithmConfig],
        *,
        max_grad_norm: float = 0.0,
        reduction: str = "mean",
        uses: Sequence[nn.Module] = (),
    ) -> None:
        self.loss, self.config, self.max_grad_norm, self.reduction = loss, config, max_grad_norm, reduction
        if config.clip_norm != "global" and not max_grad_norm:
            raise UserError(
                f"optimizer.clip_norm={config.clip_norm}: has no effect, because gradients are not clipped; remove "
                "clip_norm, or set the maximum gradient norm (algo.max_grad_norm, or clip_gradients of the network) "
                "above 0, if the algorithm has this key"
            )
        self.clipping = CLIPPING[config.clip_norm]
        fabric, self.ranks = context.fabric, context.ranks
        precision = fabric.strategy.precision
        self.module, *self.uses = (fabric.to_device(precision.convert_module(each)) for each in (module, *uses))
        # If the weights themselves have a lower precision (Fabric's "true" precisions), autocast is not needed.
        self.autocast: Any = fabric.autocast if precision.precision.endswith("mixed") else nullcontext
        self.scale = LossScale() if getattr(precision, "scaler", None) is not None else None
        self.parameters = FlatParameters(self.module, lambda name: group_of(config, name))
        self.groups = GroupedRule(config, self.parameters) if config.groups else None
        self.slots = rules.slots(config, self.parameters.vector)
        self.count, self.lr = (self.parameters.vector.new_zeros((), dtype=torch.float64) for _ in range(2))
        self._lr = math.nan
        self.set_lr(config.lr)
        self.gradient = Gradient(self.parameters)
        self.aux: dict[str, Tensor] = {}  # further outputs of the last loss
        self.execution = compile_gradient(self, context)

    def accumulate(self, *inputs: Any) -> dict[str, Tensor]:
        """Compute the loss of a minibatch and add its gradient to the accumulated gradient.

        `inputs` are the arguments of the loss function. Return the means to log, name -> [].
        """
        metrics, self.aux = self.execution(inputs)
        return metrics

    def add_loss(self, inputs: Sequence[Any], rng: None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute a loss as eager code, and add its gradient; see `accumulate`. Return the means to log, and `aux`.

        `inputs` are the arguments of the loss function. `rng` is always None: if the loss needs a random stream, this
        stream is one of the inputs.
        """
        self.parameters.gather()
        with self.autocast():
            total, weight, metrics, *aux = self.loss(*inputs)
        self.gradient.add_loss(self.scale.multiply(total) if self.scale else total, weight)
        return metrics, aux[0] if aux else {}

    def minimize(self, *inputs: Any) -> LossOutput:
        """Take one optimizer step on the loss of one minibatch; `inputs` are the arguments of the loss function."""
        metrics = self.accumulate(*inputs)
        return LossOutput(metrics, self.aux, self.apply())

    @torch.no_grad()
    def apply(self, unless: Tensor | None = None) -> Tensor:
        """Take an optimizer step: clip the accumulated gradient and update the parameters.

        If the bool tensor `unless` [] is true, parameters and optimizer state do not change, but the accumulated
        gradient is discarded. A tensor is used because its value may not be known yet on a GPU. Return the norm [] of
        the complete gradient before clipping, as a tensor on the device.
        """
        self.parameters.gather()
        return self.take_step(unless)

    def drop(self) -> None:
        """Discard the accumulated gradient."""
        self.gradient.clear()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the following optimizer steps."""
        if lr != self._lr:
            self._lr = lr
            self.lr.fill_(lr)

    # The step -----------------------------------------------------------------------------------------------------

    def take_step(self, unless: Tensor | None) -> Tensor:
        """Take an optimizer step that updates parameters and optimizer state in place; see `apply`."""
        self.gradient.sum_over_ranks(self.ranks)
        gradient, weight = self.gradient.vector, self.gradient.weight
        assert weight is not None, "no minibatch yet"
        if self.scale:
            self.scale.divide(gradient)
        if self.reduction == "mean":
            gradient.div_(weight.to(gradient))
        norm = gradient.norm()
        for part, factor in self.clip(gradient, self.parameters.vector):
            part.mul_(factor)
        self.drop()
        if self.scale and ((unless is not None and bool(unless)) or not self.scale.adapt(norm)):
            return norm  # float16 reads values of the device in any case
        own = [self.parameters.vector, *self.slots.values(), self.count]
        before = [] if unless is None else [tensor.clone() for tensor in own]
        self.count.add_(1)
        self.apply_rule(gradient)
        for tensor, old in zip(own, before, strict=False):
            tensor.copy_(torch.where(cast("Tensor", unless), old, tensor))
        self.parameters.to_module()
        return norm

    def apply_rule(self, gradient: Tensor) -> None:
        """Update parameters and optimizer state in place by the update rule, with a clipped gradient [P]."""
        state = (self.parameters.vector, gradient, self.slots, self.count, self.lr)
        if self.groups:
            self.groups.update_in_place(*state)
        else:
            rules.update_in_place(self.config, *state)

    def clip(self, gradient: Tensor, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Split a gradient [P] into parts that are clipped separately; return pairs (part, clipping factor).

        `vector` [P] contains the parameters. The list is empty if gradients are not clipped.
        """
        if not self.max_grad_norm:
            return []
        whole, split = self.clipping.whole, self.parameters.split
        parts, weights = ([each] if whole else [*split(each).values()] for each in (gradient, vector))
        factors = self.clipping.factors(parts, weights, self.max_grad_norm)
        if len(factors) != len(parts):
            raise UserError(
                f"optimizer.clip_norm={self.config.clip_norm}: the clipping rule returned {len(factors)} factors for "
                f"{len(parts)} gradients; it must return one factor for each gradient"
            )
        return [*zip(parts, factors, strict=True)]

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, without the parameters.

        It contains optimizer state, step count, learning rate, mode (compiled or eager), and the loss scale of float16.
        """
        began = self.execution.began
        state = {"slots": dict(self.slots), "count": self.count.clone(), "lr": self.lr.clone(), "compiled": began}
        return state | (self.scale.state_dict() if self.scale else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        for name, slot in self.slots.items():  # in place: a captured CUDA graph reads these addresses
            slot.copy_(state["slots"][name])
        self.count.copy_(state["count"])
        self.set_lr(float(state["lr"]))
        self.execution.resume(state["compiled"])
        if self.scale:
            self.scale.load_state_dict(state)

"""Optimizer: computes and clips the gradient of a loss, and updates the parameters of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rlcore.compiled.gradient import CompiledGradient
from rlcore.errors import UserError
from rlcore.functional.stats import LossTerms, LossTermsAux
from rlcore.optim import rules
from rlcore.optim.flat import FlatParameters, Gradient, adaptive_clip_factors, clip_factors
from rlcore.optim.loss_scale import LossScale
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.parameter_groups import GroupedRule, group_of

if TYPE_CHECKING:
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
    state. While a `rlcore.optim.step.Step` is traced for compilation, an optimizer step creates new tensors instead.
    Without a compiled `Step`, for example with several ranks, only the computation of the gradient is compiled, for the
    shapes of the first minibatch. With mixed precision, the loss is computed with autocast.

    Args:
        module: module to train; it is moved to the device of the run and converted to the precision of the run.
        loss: function of the inputs of `accumulate`. It returns the loss summed over samples [], the sum of the sample
            weights [], the means to log (name -> []), and optionally further tensors (name -> [...]).
        config: update rule and its settings.
        context: provides devices and precision (`fabric`), ranks and the compiler.
        max_grad_norm: maximum gradient norm; 0 = no clipping. `config.clip_norm` selects which norm is limited: that of
            the gradient of all parameters together ("global"), that of each parameter tensor ("tensor"), or that of
            each parameter tensor divided by the norm of its parameters ("adaptive").
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
        context: Context,
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
        self._gradient = Gradient(self.parameters)
        self._traced: list[tuple[Tensor, Tensor]] = []  # gradients and weights of minibatches, while tracing
        self._aux: dict[str, Tensor] = {}
        compiler, modules = context.compiler, [self.module, *self.uses]
        self.once = compiler and compiler.once
        self._code: CompiledGradient | None = None
        if compiler is not None and compiler.builds:
            self._code = CompiledGradient(self.loss, modules, self.parameters, self.autocast, compiler)
        self.compiled = self._code is not None
        self._began: bool | None = None  # True if the first gradient was compiled; None if there was no gradient yet

    def accumulate(self, *inputs: Any) -> dict[str, Tensor]:
        """Compute the loss of a minibatch and add its gradient to the accumulated gradient.

        `inputs` are the arguments of the loss function. Return the means to log, name -> [].
        """
        return self.once((self, "loss"), lambda: self._add(inputs)) if self.once else self._add(inputs)

    def _add(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        self.parameters.gather()
        if self.compiled and self._code is not None:
            if not self._code.built:
                self._began = self.compiled = self._code.build(inputs, bool(self._began))
            if self.compiled:
                output = self._code(inputs)
                self._gradient.add(output.gradient, output.weight)
                self._aux = output.aux
                return output.metrics
        with self.autocast():
            total, weight, metrics, *aux = self.loss(*inputs)
        self._aux = aux[0] if aux else {}
        if self.parameters.traced:
            parts = torch.autograd.grad(total, self.parameters.tensors, materialize_grads=True)
            self._traced.append((self.parameters.join(parts), weight))
        else:
            self._gradient.add_loss(self.scale.multiply(total) if self.scale else total, weight)
        return metrics

    def minimize(self, *inputs: Any) -> LossOutput:
        """Take one optimizer step on the loss of one minibatch; `inputs` are the arguments of the loss function."""
        metrics = self.accumulate(*inputs)
        return LossOutput(metrics, self._aux, self.apply())

    @torch.no_grad()
    def apply(self, unless: Tensor | None = None) -> Tensor:
        """Take an optimizer step: clip the accumulated gradient and update the parameters.

        If the bool tensor `unless` [] is true, parameters and optimizer state do not change, but the accumulated
        gradient is discarded. A tensor is used because its value may not be known yet on a GPU. Return the norm [] of
        the complete gradient before clipping, as a tensor on the device.
        """
        if self.once:
            return self.once((self, "step"), lambda: self._advance(unless))
        return self._advance(unless)

    def _advance(self, unless: Tensor | None) -> Tensor:
        self.parameters.gather()
        if self.parameters.traced:
            gradients, weights = zip(*self._traced, strict=True)
            return self._take(self._step(self._state(), _sum(gradients), _sum(weights)), unless)
        return self._step_in_place(unless)

    def drop(self) -> None:
        """Discard the accumulated gradient."""
        self._gradient.clear()
        self._traced = []

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the following optimizer steps."""
        if lr != self._lr:
            self._lr = lr
            self.lr.fill_(lr)

    # The step -----------------------------------------------------------------------------------------------------

    def _step_in_place(self, unless: Tensor | None) -> Tensor:
        """Take an optimizer step that updates parameters and optimizer state in place (no tracing).

        Return the gradient norm before clipping.
        """
        self._gradient.sum_over_ranks(self.ranks)
        gradient, weight = self._gradient.vector, self._gradient.weight
        assert weight is not None, "no minibatch yet"
        if self.scale:
            self.scale.divide(gradient)
        if self.reduction == "mean":
            gradient.div_(weight.to(gradient))
        norm = gradient.norm()
        for part, factor in self._clip(gradient, self.parameters.vector):
            part.mul_(factor)
        self.drop()
        if self.scale and not self.scale.adapt(norm):
            return norm
        own = self._state()[:-1]
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

    def _step(self, state: Sequence[Tensor], gradient: Tensor, weight: Tensor) -> list[Tensor]:
        """Compute an optimizer step without side effects, so that it can be compiled.

        Args:
            state: parameters, optimizer state, step count and learning rate before the step, as `_state` returns them.
            gradient: [P]; accumulated gradient.
            weight: []; sum of the sample weights.

        Returns:
            Parameters, optimizer state and step count after the step, and the gradient norm before clipping.
        """
        vector, *slots, count, lr = state
        if self.reduction == "mean":
            gradient = gradient / weight.to(gradient)
        norm = gradient.norm()
        clipped = [part * factor for part, factor in self._clip(gradient, vector)]
        gradient = clipped[0] if len(clipped) == 1 else self.parameters.join(clipped) if clipped else gradient
        count, slot_values = count + 1, dict(zip(self.slots, slots, strict=True))
        if self.groups:
            vector, slot_values = self.groups.update(vector, gradient, slot_values, count, lr)
        else:
            vector, slot_values = rules.update(self.config, vector, gradient, slot_values, count, lr)
        return [vector, *(slot_values[name] for name in self.slots), count, norm]

    def _clip(self, gradient: Tensor, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Split a gradient [P] into parts that are clipped separately; return pairs (part, clipping factor).

        `vector` [P] contains the parameters. The list is empty if gradients are not clipped.
        """
        if not self.max_grad_norm:
            return []
        parts = [gradient] if self.config.clip_norm == "global" else [*self.parameters.split(gradient).values()]
        if self.config.clip_norm == "adaptive":
            weights = [*self.parameters.split(vector).values()]
            return [*zip(parts, adaptive_clip_factors(parts, weights, self.max_grad_norm), strict=True)]
        return [*zip(parts, clip_factors(parts, self.max_grad_norm), strict=True)]

    def _take(self, proposed: Sequence[Tensor], unless: Tensor | None) -> Tensor:
        """Set parameters, optimizer state and step count to those in `proposed`, which is a result of `_step`.

        If the tensor `unless` is true, keep the current values. Return the gradient norm.
        """
        *after, norm = proposed
        if unless is not None:
            after = [torch.where(unless, old, new) for old, new in zip(self._state(), after, strict=False)]
        vector, *slots, self.count = after
        self.drop()
        self.parameters.take(vector)
        self.slots = dict(zip(self.slots, slots, strict=True))
        return norm

    def _state(self) -> list[Tensor]:
        return [self.parameters.vector, *self.slots.values(), self.count, self.lr]

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, without the parameters.

        It contains optimizer state, step count, learning rate, mode (compiled or eager), and the loss scale of float16.
        """
        state = {"slots": dict(self.slots), "count": self.count.clone(), "lr": self.lr.clone(), "compiled": self._began}
        return state | (self.scale.state_dict() if self.scale else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        for name, slot in self.slots.items():  # in place: a captured CUDA graph reads these addresses
            slot.copy_(state["slots"][name])
        self.count.copy_(state["count"])
        self.set_lr(float(state["lr"]))
        if self.compiled and state["compiled"] is not None:  # a run keeps the mode in which it began
            self._began = self.compiled = state["compiled"]
        if self.scale:
            self.scale.load_state_dict(state)


def _sum(values: Sequence[Tensor]) -> Tensor:
    """Sum tensors; a single tensor is returned unchanged."""
    return values[0] if len(values) == 1 else torch.stack([*values]).sum(0)

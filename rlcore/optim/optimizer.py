"""Optimizer: the gradient of one loss with respect to one module, its clipping, and the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rlcore.compiled.gradient import CompiledGradient
from rlcore.errors import UserError
from rlcore.optim import rules
from rlcore.optim.flat import FlatParameters, Gradient, clip_factors
from rlcore.optim.loss_scale import LossScale
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.parameter_groups import GroupedRule, group_of

if TYPE_CHECKING:
    from rlcore.types import Context

# Inputs -> the loss summed over samples [], the samples' summed weight [], means for the log: name -> [], and, where
# a later loss needs what this one found, tensors for it: name -> [...], without gradient.
Loss = Callable[..., tuple[Any, ...]]


class Found(NamedTuple):
    """Findings of a loss on the way to a step: means for the log, tensors for later losses, the gradient's norm []."""

    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]
    norm: Tensor


class Optimizer:
    """Owns one loss of one module: `accumulate` its gradient, then `apply` or `drop` it.

    The gradient is of the module's own parameters and of nothing else; gradients and weights are summed over the
    minibatches of a step and over all ranks, divided once, and clipped. Parameters, gradient and the rule's memory are
    one vector each, and a step writes into them. Under mixed precision the loss is computed in it, as acting is.
    In the trace of a whole `rlcore.optim.step.Step` a step gives new tensors. Outside of one, as with several ranks,
    the gradient alone is compiled, for the first minibatch's shapes.

    Args:
        module: its parameters are trained; it is brought to the context's device and precision.
        loss: of the inputs of `accumulate`, with the module's parameters as they are.
        config: the rule and its settings.
        context: fabric, ranks, and the compiler of gradients.
        max_grad_norm: norm at which gradients are clipped, of all or of each tensor (`config.clip_norm`); 0 = never.
        reduction: "mean" divides by the summed weight, "sum" does not.
        uses: other modules whose parameters the loss reads, brought there likewise: inputs of the compiled step.

    Raises:
        UserError: a group of the config has no parameter, or each tensor is to be clipped and there is no norm.
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
            raise UserError(f"optimizer.clip_norm={config.clip_norm}: nothing is clipped here, for there is no norm")
        fabric, self.ranks = context.fabric, context.ranks
        precision = fabric.strategy.precision
        self.module, *self.uses = (fabric.to_device(precision.convert_module(each)) for each in (module, *uses))
        # Of true precision it would only make new tensors coarse.
        self.autocast: Any = fabric.autocast if precision.precision.endswith("mixed") else nullcontext
        self.scale = LossScale() if getattr(precision, "scaler", None) is not None else None
        self.parameters = FlatParameters(self.module, lambda name: group_of(config, name))
        self.groups = GroupedRule(config, self.parameters) if config.groups else None
        self.slots = rules.slots(config, self.parameters.vector)
        self.count, self.lr = (self.parameters.vector.new_zeros((), dtype=torch.float64) for _ in range(2))
        self._lr = math.nan
        self.set_lr(config.lr)
        self._gradient = Gradient(self.parameters)
        self._traced: list[tuple[Tensor, Tensor]] = []  # gradients and weights of minibatches, in a trace
        self._aux: dict[str, Tensor] = {}
        compiler, modules = context.compiler, [self.module, *self.uses]
        self.once = compiler and compiler.once
        self._code: CompiledGradient | None = None
        if compiler is not None and compiler.builds:
            self._code = CompiledGradient(self.loss, modules, self.parameters, self.autocast, compiler)
        self.compiled = self._code is not None
        self._began: bool | None = None  # compiled, where it was to be; None: it has not begun

    def accumulate(self, *inputs: Any) -> dict[str, Tensor]:
        """Add the gradient of the loss of these inputs to what the next `apply` uses; returns the loss's means."""
        return self.once((self, "loss"), lambda: self._add(inputs)) if self.once else self._add(inputs)

    def _add(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        self.parameters.gather()
        if self.compiled and self._code is not None:
            if not self._code.built:
                self._began = self.compiled = self._code.build(inputs, bool(self._began))
            if self.compiled:
                made = self._code(inputs)
                self._gradient.add(made.gradient, made.weight)
                self._aux = made.aux
                return made.metrics
        with self.autocast():
            total, weight, metrics, *aux = self.loss(*inputs)
        self._aux = aux[0] if aux else {}
        if self.parameters.traced:
            parts = torch.autograd.grad(total, self.parameters.tensors, materialize_grads=True)
            self._traced.append((self.parameters.join(parts), weight))
        else:
            self._gradient.add_loss(self.scale.multiply(total) if self.scale else total, weight)
        return metrics

    def minimize(self, *inputs: Any) -> Found:
        """Take one step on the loss of these inputs alone."""
        metrics = self.accumulate(*inputs)
        return Found(metrics, self._aux, self.apply())

    @torch.no_grad()
    def apply(self, unless: Tensor | None = None) -> Tensor:
        """Clip and step, unless a tensor [] bool is true: then parameters and what the rule remembers stay.

        Returns the gradient's global norm before clipping, [] on the device; nobody waits for it.
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
        """Forget the accumulated gradient."""
        self._gradient.clear()
        self._traced = []

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next steps."""
        if lr != self._lr:
            self._lr = lr
            self.lr.fill_(lr)

    # The step -----------------------------------------------------------------------------------------------------

    def _step_in_place(self, unless: Tensor | None) -> Tensor:
        """Take the step with the accumulated gradient; its norm before clipping."""
        self._gradient.sum_over_ranks(self.ranks)
        gradient, weight = self._gradient.vector, self._gradient.weight
        assert weight is not None, "no minibatch yet"
        if self.scale:
            self.scale.divide(gradient)
        if self.reduction == "mean":
            gradient.div_(weight.to(gradient))
        norm = gradient.norm()
        for part, factor in self._clip(gradient):
            part.mul_(factor)
        self.drop()
        if self.scale and not self.scale.adapt(norm):
            return norm
        own = self._state()[:-1]
        before = [] if unless is None else [tensor.clone() for tensor in own]
        self.count.add_(1)
        self.move(gradient)
        for tensor, old in zip(own, before, strict=False):
            tensor.copy_(torch.where(cast("Tensor", unless), old, tensor))
        self.parameters.give()
        return norm

    def move(self, gradient: Tensor) -> None:
        """Let the rule write its step along a gradient [P] into the parameters and its memory."""
        state = (self.parameters.vector, gradient, self.slots, self.count, self.lr)
        if self.groups:
            self.groups.update_in_place(*state)
        else:
            rules.update_in_place(self.config, *state)

    def _step(self, state: Sequence[Tensor], gradient: Tensor, weight: Tensor) -> list[Tensor]:
        """Parameters, slots and count after the step, and the norm before clipping; no side effect."""
        vector, *slots, count, lr = state
        if self.reduction == "mean":
            gradient = gradient / weight.to(gradient)
        norm = gradient.norm()
        clipped = [part * factor for part, factor in self._clip(gradient)]
        gradient = clipped[0] if len(clipped) == 1 else self.parameters.join(clipped) if clipped else gradient
        count, held = count + 1, dict(zip(self.slots, slots, strict=True))
        if self.groups:
            vector, held = self.groups.update(vector, gradient, held, count, lr)
        else:
            vector, held = rules.update(self.config, vector, gradient, held, count, lr)
        return [vector, *(held[name] for name in self.slots), count, norm]

    def _clip(self, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts of a gradient [P] that are clipped, each with its factor []."""
        if not self.max_grad_norm:
            return []
        parts = [gradient] if self.config.clip_norm == "global" else [*self.parameters.split(gradient).values()]
        return [*zip(parts, clip_factors(parts, self.max_grad_norm), strict=True)]

    def _take(self, proposed: Sequence[Tensor], unless: Tensor | None) -> Tensor:
        """Make what `_step` gives the state, unless a tensor [] bool is true; the norm."""
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
        """Memory of the rule, how many steps it has taken and in which way; and float16's scale."""
        state = {"slots": dict(self.slots), "count": self.count.clone(), "lr": self.lr.clone(), "compiled": self._began}
        return state | (self.scale.state_dict() if self.scale else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        for name, slot in self.slots.items():  # in place: a recorded step reads it where it lies
            slot.copy_(state["slots"][name])
        self.count.copy_(state["count"])
        self.set_lr(float(state["lr"]))
        if self.compiled and state["compiled"] is not None:  # it goes on as it began
            self._began = self.compiled = state["compiled"]
        if self.scale:
            self.scale.load_state_dict(state)


def _sum(values: Sequence[Tensor]) -> Tensor:
    """Of tensors; a single one is its own."""
    return values[0] if len(values) == 1 else torch.stack([*values]).sum(0)

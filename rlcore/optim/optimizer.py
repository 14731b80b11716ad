"""Optimizer: the gradient of one loss with respect to one module, its clipping, and the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rlcore.compiled import machine_code
from rlcore.compiled.held import Held, Reading, inputs_of, layout
from rlcore.errors import RunError
from rlcore.functional.tree import rebuild
from rlcore.optim import rules
from rlcore.optim.config import OptimizerConfig
from rlcore.optim.flat import FlatParameters

if TYPE_CHECKING:
    from rlcore.types import Context

# Inputs -> the loss summed over samples [], the samples' summed weight [], means for the log: name -> [], and, where
# a later loss needs what this one found, tensors for it: name -> [...], without gradient.
Loss = Callable[..., tuple[Any, ...]]
SCALE, GROWTH = 2.0**16, 2000  # of float16, as in torch.amp.GradScaler: first scale, steps until it doubles


class Found(NamedTuple):
    """Findings of a loss on the way to a step: means for the log, tensors for later losses, the gradient's norm []."""

    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]
    norm: Tensor


class Optimizer:
    """Owns one loss of one module: `accumulate` its gradient, then `apply` or `drop` it.

    The gradient is of the module's own parameters and of nothing else; gradients and weights are summed over the
    minibatches of a step and over all ranks, divided once, and clipped by the global norm. Parameters and the rule's
    memory are one vector each. Under mixed precision the loss is computed in it, as acting is. Compiled, loss to step
    are one function, built for the first minibatch's shapes; what changes comes in as tensors: schedules build nothing.

    Args:
        module: its parameters are trained; it is brought to the context's device and precision.
        loss: of the inputs of `accumulate`, with the module's parameters as they are.
        config: the rule and its settings.
        context: fabric, ranks, and whether steps are compiled.
        max_grad_norm: global norm at which gradients are clipped; 0 = never.
        accumulate: the most minibatches of one step.
        reduction: "mean" divides by the summed weight, "sum" does not.
        uses: other modules whose parameters the loss reads, brought there likewise: inputs of the compiled step.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        config: OptimizerConfig,
        context: Context,
        *,
        max_grad_norm: float = 0.0,
        accumulate: int = 1,
        reduction: str = "mean",
        uses: Sequence[nn.Module] = (),
    ) -> None:
        fabric, self.ranks = context.fabric, context.ranks
        self.loss, self.config, self.max_grad_norm, self.reduction = loss, config, max_grad_norm, reduction
        precision = fabric.strategy.precision
        self.module, *self.uses = (fabric.to_device(precision.convert_module(each)) for each in (module, *uses))
        # Of true precision it would only make new tensors coarse.
        self.autocast: Any = fabric.autocast if precision.precision.endswith("mixed") else nullcontext
        self.parameters = FlatParameters(self.module)
        # All that the loss may read beside what is trained: other modules, frozen parameters, buffers.
        self._held = Held([self.module, *self.uses], self.parameters.tensors)
        self.slots = rules.slots(config, self.parameters.vector)
        self.count = torch.zeros((), dtype=torch.float64)
        self._lr = math.nan
        self.set_lr(config.lr)
        # float16 alone: steps with an overflow are skipped and the scale lowered, so such a gradient is no fault.
        self.scales_loss = getattr(precision, "scaler", None) is not None
        self.scale, self.growing = torch.tensor(SCALE if self.scales_loss else 1.0), 0
        self.compiled = context.compiler is not None
        self.whole = self.compiled and accumulate == 1 and self.ranks.size == 1  # compiled from loss to step
        self._function: Callable[[list[Tensor]], list[Tensor]] | None = None
        self._compiler, name = context.compiler, f"{loss.__module__}.{getattr(loss, '__qualname__', loss)}"
        self._decides = {
            "modules": [repr(self.module), *map(repr, self.uses)],
            "rule": config,
            "clip": max_grad_norm,
            "reduction": reduction,
            **(self._compiler.facts(name) if self._compiler else {}),
        }
        self._layout: list[Any] = []
        self._names: list[list[str]] = [[], []]  # of the means, of what is for later losses
        self._aux: dict[str, Tensor] = {}
        self._began: bool | None = None  # compiled, where it was to be; None: it has not begun
        self._pending: list[tuple[Tensor, Tensor]] = []  # gradients and weights of minibatches
        self._proposed: list[Tensor] = []  # the step as a whole, not taken yet

    def accumulate(self, *inputs: Any) -> dict[str, Tensor]:
        """Add the gradient of the loss of these inputs to what the next `apply` uses; returns the loss's means."""
        self.parameters.gather()
        if self.compiled and self._function is None:
            self._build(inputs)
        if not self.compiled:
            gradient, weight, means, self._aux = self._gradient(inputs)
            self._pending.append((gradient, weight))
            return means
        given = self._given(inputs)
        assert layout(given[len(given) - len(self._layout) :]) == self._layout, "the step was compiled for other shapes"
        assert self._function is not None
        made = self._function(given)
        names, kept = self._names
        found = made[len(made) - len(names) - len(kept) :]
        means, self._aux = dict(zip(names, found, strict=False)), dict(zip(kept, found[len(names) :], strict=True))
        if self.whole:
            assert not self._proposed, "one minibatch a step"
            self._proposed = made[: len(self.slots) + 3]
        else:
            self._pending.append((made[0], made[1]))
        return means

    def minimize(self, *inputs: Any) -> Found:
        """Take one step on the loss of these inputs alone."""
        metrics = self.accumulate(*inputs)
        return Found(metrics, self._aux, self.apply())

    @torch.no_grad()
    def apply(self, unless: Tensor | None = None) -> Tensor:
        """Clip and step, unless a tensor [] bool is true: then parameters and what the rule remembers stay.

        Returns the gradient's global norm before clipping, [] on the device, never synchronised.
        """
        if not self._proposed:
            self.parameters.gather()
            gradients, weights = zip(*self._pending, strict=True)
            gradient = gradients[0] if len(gradients) == 1 else torch.stack(gradients).sum(0)
            weight = weights[0] if len(weights) == 1 else torch.stack(weights).sum()
            if self.ranks.size > 1:
                whole = self.ranks.sum(torch.cat([gradient, weight.reshape(1).to(gradient)]))
                gradient, weight = whole[:-1], whole[-1]
            gradient = gradient / self.scale.to(gradient) if self.scales_loss else gradient
            self._proposed = self._step(self._state(), gradient, weight)
        *after, norm = self._proposed
        if unless is not None:
            after = [torch.where(unless, old, new) for old, new in zip(self._state(), after, strict=False)]
        vector, *slots, count = after
        self.drop()
        if self.scales_loss and not self._scaled(norm):
            return norm
        self.parameters.take(vector)
        self.slots, self.count = dict(zip(self.slots, slots, strict=True)), count
        return norm

    def drop(self) -> None:
        """Forget the accumulated gradient."""
        self._pending, self._proposed = [], []

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next steps."""
        if lr != self._lr:
            self._lr, self.lr = lr, torch.tensor(lr, dtype=torch.float64)

    def _gradient(self, inputs: Sequence[Any]) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        with self.autocast():
            total, weight, means, *aux = self.loss(*inputs)
        scaled = total.float() * self.scale.to(total.device) if self.scales_loss else total
        parts = torch.autograd.grad(scaled, self.parameters.tensors, materialize_grads=True)
        return self.parameters.joined(parts), weight, means, aux[0] if aux else {}

    def _step(self, state: Sequence[Tensor], gradient: Tensor, weight: Tensor) -> list[Tensor]:
        """Parameters, slots and count after the step, and the norm before clipping; no side effect."""
        vector, *slots, count, lr = state
        if self.reduction == "mean":
            gradient = gradient / weight.to(gradient)
        norm = gradient.norm()
        if self.max_grad_norm:
            gradient = gradient * (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        count = count + 1
        remembered = dict(zip(self.slots, slots, strict=True))
        vector, remembered = rules.update(self.config, vector, gradient, remembered, count, lr)
        return [vector, *(remembered[name] for name in self.slots), count, norm]

    def _scaled(self, norm: Tensor) -> bool:
        """Adapt the scale of float16; whether the step may be taken."""
        finite = bool(norm.isfinite())
        self.growing = self.growing + 1 if finite else 0
        if not finite:
            self.scale = self.scale / 2
        elif self.growing == GROWTH:
            self.scale, self.growing = self.scale * 2, 0
        return finite

    def _state(self) -> list[Tensor]:
        return [self.parameters.vector, *self.slots.values(), self.count, self.lr]

    # Compiled ---------------------------------------------------------------------------------------------------------

    def _given(self, inputs: Sequence[Any]) -> list[Tensor]:
        """What the compiled step is called with."""
        return [*self._state(), *self._held.tensors(), *inputs_of(inputs)]

    def _build(self, inputs: Sequence[Any]) -> None:
        """Trace loss and step with the first inputs, and have machine code made of them; as written where that fails.

        A UserError where a run that began compiled cannot be traced here, as by another torch.
        """
        self.whole = self.whole and not self.parameters.shared  # else the other's step between would be undone
        try:
            self._make(self._given(inputs), inputs)
        except RunError:
            raise
        except Exception as error:  # whatever tracing meets in somebody's loss
            machine_code.leave_as_written("the minibatch step", "a compiled step", bool(self._began), error)
            self.compiled = self.whole = False
        self._began = self.compiled

    def _make(self, example: list[Tensor], inputs: Sequence[Any]) -> None:
        objective = Reading(nn.ModuleList([self.module, *self.uses]), self.loss)
        held, states = self._held.names, len(self._state())

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            state, rest = tensors[:states], tensors[states:]
            borrowed, given = dict(zip(held, rest, strict=False)), rest[len(held) :]

            def value(named: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
                parts = {f"members.0.{name}": part for name, part in named.items()} | borrowed
                with self.autocast():
                    total, weight, means, *aux = functional_call(objective, parts, rebuild(inputs, iter(given)))
                kept = aux[0] if aux else {}
                self._names = [[*means], [*kept]]
                return total, (weight, [*means.values(), *kept.values()])

            parts, (_, (weight, found)) = grad_and_value(value, has_aux=True)(self.parameters.split(state[0]))
            gradient = self.parameters.join(parts)
            made = self._step(state, gradient, weight) if self.whole else [gradient, weight]
            return *made, *found

        self._layout = layout(example[states + len(held) :])
        decides = self._decides | {"whole": self.whole}
        made_of = (self.loss, self.module, *self.uses)
        assert self._compiler is not None
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(decides, seed, lambda: self._names, made_of, prepare=prepare)
        self._function, self._names = machine_code.made_once("the minibatch step", function, example, facts)

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers, how many steps it has taken and in which way; and float16's scale."""
        scaling = {"scale": self.scale, "growing": self.growing} if self.scales_loss else {}
        return {"slots": dict(self.slots), "count": self.count, "lr": self.lr, "compiled": self._began, **scaling}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.slots = {name: state["slots"][name].to(self.parameters.vector).clone() for name in self.slots}
        self.count = state["count"].clone()
        self.set_lr(float(state["lr"]))
        if self.compiled and state["compiled"] is not None:  # it goes on as it began
            self._began = self.compiled = state["compiled"]
            self.whole = self.whole and self.compiled
        if self.scales_loss:
            self.scale, self.growing = state["scale"].clone(), state["growing"]

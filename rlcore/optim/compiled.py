"""The optimizer whose whole step (loss, gradient, clipping, Adam) is one ahead-of-time compiled function.

Parameters and moments are one vector each: the module's parameters become views into the first, so everything else
(acting, saving, loading) goes on as before. What changes between steps comes in as tensors: schedules build nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rlcore.optim import package
from rlcore.optim.optimizer import Loss, OptimizerConfig

LINE = 16  # float32 numbers in a cache line: parameters are aligned as if each had memory of its own


class FlatParameters:
    """The parameters of a module (float32, on the CPU), which become views into one `vector`."""

    def __init__(self, module: nn.Module) -> None:
        named = dict(module.named_parameters())
        assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in named.values())
        self.places: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for name, parameter in named.items():
            self.places[name] = (size, parameter.shape)
            size += math.ceil(parameter.numel() / LINE) * LINE
        self.vector = torch.zeros(size)
        for name, view in self.split(self.vector).items():
            view.copy_(named[name].data)
            named[name].data = view

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector, by parameter name."""
        return {name: vector[at : at + shape.numel()].view(shape) for name, (at, shape) in self.places.items()}

    def join(self, parts: dict[str, Tensor]) -> Tensor:
        """The vector of such parts; zero between them."""
        padded = [nn.functional.pad(part.reshape(-1), (0, -part.numel() % LINE)) for part in parts.values()]
        return torch.cat(padded)


class CompiledOptimizer:
    """`rlcore.optim.optimizer.Optimizer` for Adam and AdamW in float32 on the CPU, compiled.

    Args:
        module: its parameters are trained.
        loss: as for `Optimizer`; traced once, so what it computes must not depend on the numbers in its inputs but
            through tensor operations.
        config: adam or adamw.
        max_grad_norm: global norm at which gradients are clipped; 0 = never.
        example: inputs of the loss; numbers among them are coefficients, free to change.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        config: OptimizerConfig,
        max_grad_norm: float,
        example: Sequence[Tensor | float],
    ) -> None:
        self.scales_loss = False
        self.parameters = FlatParameters(module)
        zeros = torch.zeros_like(self.parameters.vector)
        self.moments = (zeros, zeros.clone())
        self.count = torch.zeros((), dtype=torch.float64)
        self.set_lr(config.lr)
        self._proposed: list[Tensor] = []
        step = make_step(module, self.parameters, loss, config, max_grad_norm)
        inputs = [*self._state(), *map(_tensor, example)]
        self._layout = [(i.shape, i.dtype) for i in inputs]
        self._step = package.compiled(package.trace(step, inputs), inputs)

    def _state(self) -> tuple[Tensor, ...]:
        return (self.parameters.vector, *self.moments, self.count, self.lr)

    def accumulate(self, *inputs: Tensor | float) -> Tensor:
        """Compute the next step on the loss of these inputs, without taking it; returns the loss's means."""
        assert not self._proposed, "one minibatch a step"
        given = [*self._state(), *map(_tensor, inputs)]
        assert [(i.shape, i.dtype) for i in given] == self._layout, "the compiled step was built for other shapes"
        *self._proposed, means = self._step(given)
        return means

    def apply(self) -> Tensor:
        """Take the computed step. Returns the gradient's global norm before clipping, []."""
        vector, first, second, self.count, norm = self._proposed
        self.parameters.vector.copy_(vector)
        self.moments = (first, second)
        self._proposed = []
        return norm

    def drop(self) -> None:
        """Forget the computed step."""
        self._proposed = []

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next steps."""
        self.lr = torch.tensor(lr, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        """Moments and counter."""
        return {"exp_avg": self.moments[0], "exp_avg_sq": self.moments[1], "step": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.moments = (state["exp_avg"].clone(), state["exp_avg_sq"].clone())
        self.count = state["step"].clone()


def _tensor(value: Tensor | float) -> Tensor:
    return value.contiguous() if isinstance(value, Tensor) else torch.tensor(value)


class _Objective(nn.Module):
    """A loss as a module around the one it trains, so that `functional_call` can exchange the parameters."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(*inputs)


def make_step(
    module: nn.Module, parameters: FlatParameters, loss: Loss, config: OptimizerConfig, max_grad_norm: float
) -> Callable[..., tuple[Tensor, ...]]:
    """The whole step as a function without side effects.

    (vector, exp_avg, exp_avg_sq, count, lr, *inputs) -> the first four after the step, the gradient's norm before
    clipping, and the loss's means.
    """
    objective = _Objective(module, loss)

    def value(named: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return functional_call(objective, {f"module.{name}": part for name, part in named.items()}, inputs)

    def step(vector: Tensor, first: Tensor, second: Tensor, count: Tensor, lr: Tensor, *inputs: Tensor) -> Any:
        gradients, (_, means) = grad_and_value(value, has_aux=True)(parameters.split(vector), inputs)
        gradient = parameters.join(gradients)
        norm = gradient.norm()
        if max_grad_norm:
            gradient = gradient * (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        return *adam(config, vector, gradient, first, second, count, lr), norm, means

    return step


def adam(
    config: OptimizerConfig, vector: Tensor, gradient: Tensor, first: Tensor, second: Tensor, count: Tensor, lr: Tensor
) -> tuple[Tensor, ...]:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) and AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
        config: name, betas, eps and weight_decay.
        vector: θ, [P].
        gradient: g, [P].
        first: m, [P].
        second: v, [P].
        count: t, [] float64, steps taken before this one.
        lr: α, [] float64.

    Returns:
        θ, m, v and t after the step.
    """
    beta1, beta2 = config.betas if config.betas is not None else (0.9, 0.999)
    eps = config.eps if config.eps is not None else 1e-8
    if config.name == "adamw":
        vector = vector * (1 - lr * config.weight_decay).float()
    elif config.weight_decay:
        gradient = gradient + config.weight_decay * vector
    count = count + 1
    first = first + (1 - beta1) * (gradient - first)
    second = beta2 * second + (1 - beta2) * gradient.square()
    # The corrections in float64: in float32, 1 - β₂ᵗ has lost four digits at the first step.
    size = (lr / (1 - beta1**count)).float()
    scale = (1 - beta2**count).sqrt().float()
    return vector - size * first / (second.sqrt() / scale + eps), first, second, count

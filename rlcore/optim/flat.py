"""Flat storage of parameters and gradients: all parameters of a module are views of one vector.

An optimizer step then consists of a few operations on large vectors instead of many on small tensors. The loss scale of
float16 applies to gradients in this form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rlcore.types import Ranks

LINE = 16  # float32 numbers in a cache line; each parameter starts at a multiple of it
SCALE, GROWTH = 2.0**16, 2000  # as in torch.amp.GradScaler: first scale, steps until it doubles


class FlatParameters:
    """Parameters of a module, stored as views of one `vector` [P].

    Two optimizers can train the same parameters, for example those of an encoder that two losses use. A parameter can
    be a view of only one vector, the one that was created first. If some parameters of `module` already are views of
    another vector, no parameter of `module` becomes a view of this vector. Instead, the parameters are copied into
    `vector` before each optimizer step, and back after it.

    Args:
        module: module to train. It must already be on its device and have its final dtype.
        order: function of a parameter name that returns a sort key. Parameters are stored in the order of their keys,
            for example one parameter group after the other.
    """

    # own: True if the parameters are views of `vector`; shared: True if another optimizer also trains some of them

    def __init__(self, module: nn.Module, order: Callable[[str], int] = lambda _: 0) -> None:
        self.modules = [*module.modules()]
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.named = dict(sorted(trained, key=lambda item: order(item[0])))
        self.tensors: list[Tensor] = list(self.named.values())
        self.places: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for name, parameter in self.named.items():
            self.places[name] = (size, parameter.shape)
            size += math.ceil(parameter.numel() / LINE) * LINE
        first = self.tensors[0]
        assert all((p.dtype, p.device) == (first.dtype, first.device) for p in self.tensors)
        self.vector = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.views = list(self.split(self.vector).values())
        owners: list[FlatParameters] = [owner for p in self.tensors if (owner := getattr(p, "flat_owner", None))]
        self.own, self.shared = not owners, bool(owners)
        for owner in owners:
            owner.shared = True
        with torch.no_grad():
            self._copy()
        if self.own:
            for parameter, view in zip(self.tensors, self.views, strict=True):
                parameter.data, parameter.flat_owner = view, self  # pyright: ignore[reportAttributeAccessIssue]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a vector [P] into views that have the shapes of the parameters; return name -> view."""
        return {name: vector[at : at + shape.numel()].view(shape) for name, (at, shape) in self.places.items()}

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """Concatenate tensors, one for each parameter in the order of the parameters, to a new vector [P].

        Each tensor is padded with zeros to a multiple of 16 numbers.
        """
        return torch.cat([nn.functional.pad(part.reshape(-1), (0, -part.numel() % LINE)) for part in parts])

    @torch.no_grad()
    def gather(self) -> None:
        """Update the vector with the current values of parameters that another optimizer trains as well.

        Call this method before an optimizer step.
        """
        if not self.own:
            self._copy()

    def _copy(self) -> None:
        for parameter, view in zip(self.tensors, self.views, strict=True):
            view.copy_(parameter)

    @torch.no_grad()
    def take(self, vector: Tensor) -> None:
        """Set all parameters to the values of a vector [P]."""
        self.vector.copy_(vector)
        self.to_module()

    @torch.no_grad()
    def lerp(self, other: Tensor, shares: Sequence[tuple[slice, Tensor | None]]) -> None:
        """Move parts of the vector towards another vector [P]: θ ← θ + τ (θ' - θ).

        `shares` lists all parts, in their order, and the share τ [] of each; None: the part does not move.
        """
        for at, share in shares:
            if share is not None:
                self.vector[at].lerp_(other[at], share)
        self.to_module()

    @torch.no_grad()
    def to_module(self) -> None:
        """Copy the values of the vector to the parameters of the module, unless these are views of the vector."""
        if not self.own:
            for parameter, view in zip(self.tensors, self.views, strict=True):
                parameter.data.copy_(view)


class Gradient:
    """Accumulated gradient: the sum of the gradients [P] of several minibatches, and of their sample weights.

    Memory is allocated when the first gradient is added.

    Args:
        parameters: parameters with respect to which losses are differentiated.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.weight: Tensor | None = None  # None: no minibatch has been added
        self._vector: Tensor | None = None  # [P + LINE]; the last element transfers the weight between ranks

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Compute the gradient of a minibatch's loss by backpropagation, and add it.

        `total` [] is the loss summed over samples, `weight` [] the sum of the sample weights.
        """
        self._begin(weight)
        tensors = self.parameters.tensors
        for tensor, view in zip(tensors, self._views, strict=True):
            tensor.grad = view
        try:
            torch.autograd.backward(total, inputs=tensors)  # adds to what `grad` holds
        finally:
            for tensor in tensors:
                tensor.grad = None

    def add(self, vector: Tensor, weight: Tensor) -> None:
        """Add the gradient of a minibatch.

        `vector` [P] is the gradient of the loss summed over samples, `weight` [] the sum of the sample weights.
        """
        self._begin(weight)
        self.vector.add_(vector)

    @property
    def vector(self) -> Tensor:
        """Sum of the gradients that were added, [P]. The caller may modify it in place, for example to clip it."""
        assert self._vector is not None, "no minibatch yet"
        return self._vector[:-LINE]

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Replace the gradient and the weight by their sums over all ranks."""
        if ranks.size > 1:
            assert self._vector is not None and self.weight is not None
            self._vector[-1] = self.weight
            self._vector.copy_(ranks.sum(self._vector))
            self.weight = self._vector[-1].clone()

    def clear(self) -> None:
        """Discard the accumulated gradient and weight; the next minibatch starts a new sum."""
        self.weight = None

    def _begin(self, weight: Tensor) -> None:
        before = self.weight
        if self._vector is None:
            like = self.parameters.vector
            self._vector = like.new_zeros(len(like) + LINE)
            self._views = list(self.parameters.split(self.vector).values())
        elif before is None:
            self._vector.zero_()
        self.weight = weight if before is None else before + weight


class LossScale:
    """Dynamic loss scale, so that small gradients are not rounded to 0 in float16.

    It is halved if a gradient overflows, and doubled after 2,000 optimizer steps without overflow.
    """

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

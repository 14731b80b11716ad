"""Flat storage of a module's parameters as views of one vector, so that an optimizer step is a few large operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from rlcore.types import Ranks

LINE = 16  # float32 numbers in a cache line; each parameter starts at a multiple of it


class FlatParameters:
    """Parameters of a module, stored as views of one `vector` [P].

    If another `FlatParameters` already stores some of the parameters, for example because two losses train the same
    encoder, all parameters of this one keep their own storage. They are then copied into the vector before a step, and
    back after it.

    Args:
        module: already on its device and in its precision.
        order: sort key of a parameter name; parameters with equal keys are stored next to each other.
    """

    # own: True if the parameters are views of `vector`; shared: True if another optimizer also trains some of them

    def __init__(self, module: nn.Module, order: Callable[[str], int] = lambda _: 0) -> None:
        self._modules = [*module.modules()]
        self._spots: list[list[tuple[Any, str]]] | None = None  # attributes of modules to replace while tracing
        self.trained = True
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
        """Return views of a vector [P], by parameter name."""
        return {name: vector[at : at + shape.numel()].view(shape) for name, (at, shape) in self.places.items()}

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """Concatenate tensors in the order of the parameters to a new vector [P], padded with zeros."""
        return torch.cat([nn.functional.pad(part.reshape(-1), (0, -part.numel() % LINE)) for part in parts])

    @property
    def traced(self) -> bool:
        """True while the step is traced; the parameters must not be modified in place then."""
        return self._spots is not None

    @contextmanager
    def replaceable(self) -> Iterator[None]:
        """Return a context in which `take` replaces the module's parameters and leaves the stored ones unchanged.

        It is used for tracing, in which a gradient step is a function of vectors.
        """
        own, vector = self.tensors, self.vector
        held = [module._parameters for module in self._modules]  # pyright: ignore[reportPrivateUsage]
        spots = [[(names, key) for names in held for key, p in names.items() if p is t] for t in own]
        self._spots = spots
        try:
            yield
        finally:
            self.vector, self._spots = vector, None
            self._exchange(own, spots)

    def _exchange(self, tensors: Sequence[Tensor], spots: Sequence[Sequence[tuple[Any, str]]]) -> None:
        self.tensors = [*tensors]
        for tensor, places in zip(tensors, spots, strict=True):
            for held, key in places:
                held[key] = tensor

    @torch.no_grad()
    def gather(self) -> None:
        """Update the vector with parameters that another optimizer has changed; call it before a step."""
        if self._spots is not None:
            if self.shared:
                self.tensors = [places[0][0][places[0][1]] for places in self._spots]
                self.vector = self.join(self.tensors)
        elif not self.own:
            self._copy()

    def _copy(self) -> None:
        for parameter, view in zip(self.tensors, self.views, strict=True):
            view.copy_(parameter)

    @torch.no_grad()
    def take(self, vector: Tensor) -> None:
        """Set the parameters to a vector [P]."""
        if self._spots is not None:
            self.vector = vector
            parts = (part.detach() for part in self.split(vector).values())
            self._exchange([part.requires_grad_(self.trained) for part in parts], self._spots)
            return
        self.vector.copy_(vector)
        self.to_module()

    @torch.no_grad()
    def to_module(self) -> None:
        """Copy the vector to the module's parameters, if these are not views of the vector."""
        if not self.own:
            for parameter, view in zip(self.tensors, self.views, strict=True):
                parameter.data.copy_(view)


class Gradient:
    """Sum of the gradients [P] of several minibatches, and sum of their sample weights.

    The storage is allocated when the first gradient is added.

    Args:
        parameters: parameters to differentiate with respect to.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.weight: Tensor | None = None  # None: no minibatch has been added
        self._vector: Tensor | None = None  # [P + LINE]; the last element transfers the weight between ranks

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Add the gradient of a loss; `total` [] is its sum over samples, `weight` [] the sum of their weights."""
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
        """Add a gradient [P] that is summed over samples; `weight` [] is the sum of their weights."""
        self._begin(weight)
        self.vector.add_(vector)

    @property
    def vector(self) -> Tensor:
        """Sum of the gradients, [P]; it may be modified in place."""
        assert self._vector is not None, "no minibatch yet"
        return self._vector[:-LINE]

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Sum gradient and weight over all ranks."""
        if ranks.size > 1:
            assert self._vector is not None and self.weight is not None
            self._vector[-1] = self.weight
            self._vector.copy_(ranks.sum(self._vector))
            self.weight = self._vector[-1].clone()

    def clear(self) -> None:
        """Discard the gradient and the weight."""
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


def clip_factors(parts: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Return a factor [] for each part; multiplied by it, the part has at most the norm `max_norm`.

    A small ε is added to the norm, as in torch's `clip_grad_norm_`.
    """
    return [(max_norm / (part.norm() + 1e-6)).clamp(max=1.0) for part in parts]

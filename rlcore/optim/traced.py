"""State of a gradient step that is compiled, and its replacement while the step is traced.

Eager code changes parameters and optimizer state in place. To compile a gradient step, it is traced as a function
without side effects: other tensors take the place of the state that the step changes, each change creates new tensors,
and the last ones are the results of the function.

In this module, optimizers and target networks have the type Any, because `rlcore.optim.optimizer` imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlcore.optim import rules
from rlcore.optim.flat import FlatParameters


class MutableState:
    """All tensors that a gradient step changes (parameters, optimizer state, step counts), and the learning rates.

    Args:
        optimizers: all optimizers that the gradient step uses.
        targets: all target networks that the gradient step updates.
    """

    def __init__(self, optimizers: Sequence[Any], targets: Sequence[Any]) -> None:
        self.optimizers, self.targets = [*optimizers], [*targets]

    @property
    def flat(self) -> list[FlatParameters | TracedParameters]:
        """Parameters of all optimizers and target networks."""
        return [each.parameters for each in (*self.optimizers, *self.targets)]

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the mutable state, in a fixed order; the learning rates are the last ones.

        If several optimizers train the same parameters, each optimizer's copy is first updated to the newest values.
        """
        for flat in self.flat:
            flat.gather()
        state = [tensor for o in self.optimizers for tensor in (*o.slots.values(), o.count)]
        return [*(flat.vector for flat in self.flat), *state, *(o.lr for o in self.optimizers)]

    def memory(self) -> list[int]:
        """Return the indices of the optimizer state (for example Adam's moments) in the list that `tensors` returns."""
        slots = {id(slot) for o in self.optimizers for slot in o.slots.values()}
        return [place for place, tensor in enumerate(self.tensors()) if id(tensor) in slots]

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Set the mutable state, except for the learning rates, to other tensors.

        `tensors` yields them in the order of the list that the method `tensors` returns.
        """
        for flat in self.flat:
            flat.take(next(tensors))
        for optimizer in self.optimizers:
            optimizer.slots = {name: next(tensors) for name in optimizer.slots}
            optimizer.count = next(tensors)

    def give(self) -> None:
        """Copy updated parameters back to the modules if they are not views of the optimizers' vectors.

        Parameters that several optimizers train are copies.
        """
        for flat in self.flat:
            flat.to_module()

    def drop(self) -> None:
        """Discard the accumulated gradients of all optimizers, for example after an interrupted gradient step."""
        for optimizer in self.optimizers:
            optimizer.drop()

    @contextmanager
    def apart(self, tensors: Iterator[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Return a context manager that temporarily replaces the mutable state and the learning rates by other tensors.

        `tensors` yields these tensors in the order of the list that the method `tensors` returns. The context manager
        yields a function; called after the gradient step, it returns the changed state without the learning rates. At
        the end of the context, the original state is restored.
        """
        kept = [(o, o.slots, o.count, o.lr) for o in self.optimizers]
        try:
            with without_side_effects(self.optimizers, self.targets):
                self.take(tensors)
                for optimizer in self.optimizers:
                    optimizer.lr = next(tensors)
                yield lambda: self.tensors()[: -len(self.optimizers)]
        finally:
            for optimizer, optimizer.slots, optimizer.count, optimizer.lr in kept:
                optimizer.drop()


class GradientInputs:
    """State of an optimizer that a compiled gradient reads: the parameter vector. The gradient does not change it.

    The methods are those of `MutableState`.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def tensors(self) -> list[Tensor]:
        """Return the current parameter vector [P]."""
        self._optimizer.parameters.gather()
        return [self._optimizer.parameters.vector]

    def memory(self) -> list[int]:
        """Return []: there is no optimizer state."""
        return []

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Do nothing, because no tensor was changed."""

    @contextmanager
    def apart(self, tensors: Iterator[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Return a context manager in which the optimizer has another parameter vector; see `MutableState.apart`."""
        with without_side_effects([self._optimizer], []):
            self._optimizer.parameters.take(next(tensors))
            yield list[Tensor]


# Replacements during a trace ------------------------------------------------------------------------------------------


@contextmanager
def without_side_effects(optimizers: Sequence[Any], targets: Sequence[Any]) -> Iterator[None]:
    """Return a context manager in which optimizers and targets create new tensors instead of changing tensors in place.

    At the end of the context, the modules have their original parameters again; their values have not changed.
    """
    holders = [*optimizers, *targets]
    own = [(each, each.parameters) for each in holders]
    traced = [TracedParameters(each.parameters) for each in holders]
    gradients = [(optimizer, optimizer.gradient) for optimizer in optimizers]
    for each, parameters in zip(holders, traced, strict=True):
        each.parameters = parameters
    for optimizer in optimizers:
        optimizer.gradient, optimizer.take_step = TracedGradient(optimizer), partial(take_step, optimizer)
    try:
        yield
    finally:
        for optimizer, gradient in gradients:
            optimizer.gradient = gradient
            del optimizer.take_step
        for (each, parameters), replacement in zip(own, traced, strict=True):
            each.parameters = parameters
            replacement.restore()


class TracedParameters:
    """Replacement of `FlatParameters`: `take` and `lerp` replace the parameters of the module by new tensors.

    Args:
        flat: the parameters that are replaced.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat, self.vector, self.tensors = flat, flat.vector, flat.tensors
        self.places, self.split, self.join = flat.places, flat.split, flat.join
        owners: list[Any] = flat.modules
        held: list[dict[str, Any]] = [module._parameters for module in owners]
        self._spots = [[(names, key) for names in held for key, p in names.items() if p is t] for t in flat.tensors]

    def gather(self) -> None:
        """Update the vector with the current values of parameters that another optimizer trains as well."""
        if self._flat.shared:
            self.tensors = [spots[0][0][spots[0][1]] for spots in self._spots]
            with torch.no_grad():
                self.vector = self.join(self.tensors)

    @torch.no_grad()
    def take(self, vector: Tensor) -> None:
        """Set all parameters to the values of a vector [P]."""
        self.vector = vector
        parts = zip(self.split(vector).values(), self._flat.tensors, strict=True)
        self._exchange([part.detach().requires_grad_(own.requires_grad) for part, own in parts])

    def lerp(self, other: Tensor, shares: Sequence[tuple[slice, Tensor | None]]) -> None:
        """Move parts of the vector towards another one, as `FlatParameters.lerp` does."""
        parts = [(self.vector[at], other[at], share) for at, share in shares]
        moved = [mine if share is None else mine.lerp(theirs, share) for mine, theirs, share in parts]
        self.take(moved[0] if len(moved) == 1 else torch.cat(moved))

    def to_module(self) -> None:
        """Do nothing: `take` has replaced the parameters of the module."""

    def restore(self) -> None:
        """Give the module its original parameters."""
        self._exchange(self._flat.tensors)

    def _exchange(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [*tensors]
        for tensor, spots in zip(tensors, self._spots, strict=True):
            for held, key in spots:
                held[key] = tensor


class TracedGradient:
    """Replacement of `Gradient`: keeps the gradients of all minibatches and does not change them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._parts = optimizer, list[tuple[Tensor, Tensor]]()

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Compute the gradient of a minibatch's loss, and add it; see `Gradient.add_loss`."""
        parameters = self._optimizer.parameters
        parts = torch.autograd.grad(total, parameters.tensors, materialize_grads=True)
        self._parts.append((parameters.join(parts), weight))

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the sum of the gradients [P] and the sum of the sample weights []."""
        gradients, weights = zip(*self._parts, strict=True)
        return _sum(gradients), _sum(weights)

    def clear(self) -> None:
        """Discard the accumulated gradient."""
        self._parts = []


def _sum(values: Sequence[Tensor]) -> Tensor:
    """Sum tensors; a single tensor is returned unchanged."""
    return values[0] if len(values) == 1 else torch.stack([*values]).sum(0)


def take_step(optimizer: Any, unless: Tensor | None) -> Tensor:
    """Take an optimizer step that creates new tensors; the replacement of `Optimizer.take_step`.

    If the tensor `unless` is true, keep the values. Return the gradient norm before clipping.
    """
    gradient, weight = optimizer.gradient.sums()
    vector, slots, count, lr = optimizer.parameters.vector, optimizer.slots, optimizer.count, optimizer.lr
    if optimizer.reduction == "mean":
        gradient = gradient / weight.to(gradient)
    norm = gradient.norm()
    clipped = [part * factor for part, factor in optimizer.clip(gradient, vector)]
    if clipped:
        gradient = clipped[0] if optimizer.clipping.whole else optimizer.parameters.join(clipped)
    update = optimizer.groups.update if optimizer.groups else partial(rules.update, optimizer.config)
    before = [vector, *slots.values(), count]
    count = count + 1
    moved, state = update(vector, gradient, slots, count, lr)
    after = [moved, *(state[name] for name in slots), count]
    if unless is not None:
        after = [torch.where(unless, old, new) for old, new in zip(before, after, strict=True)]
    vector, *values, optimizer.count = after
    optimizer.drop()
    optimizer.parameters.take(vector)
    optimizer.slots = dict(zip(slots, values, strict=True))
    return norm

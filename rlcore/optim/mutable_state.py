"""Mutable state of a gradient step: the tensors that the step reads and changes.

For compilation, a gradient step is traced as a function without side effects. Its inputs replace the mutable state, and
the changed state is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target


class MutableState:
    """All tensors that a gradient step changes (parameters, optimizer state, step counts), and the learning rates.

    Args:
        optimizers: all optimizers that the gradient step uses.
        targets: all target networks that the gradient step updates.
    """

    def __init__(self, optimizers: Sequence[Optimizer], targets: Sequence[Target]) -> None:
        self.optimizers = [*optimizers]
        self.flat = [*(o.parameters for o in optimizers), *(t.parameters for t in targets)]

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the mutable state, in a fixed order; the learning rates are the last ones.

        If several optimizers train the same parameters, each optimizer's copy is first updated to the newest values.
        """
        for flat in self.flat:
            flat.gather()
        rules = [tensor for o in self.optimizers for tensor in (*o.slots.values(), o.count)]
        return [*(flat.vector for flat in self.flat), *rules, *(o.lr for o in self.optimizers)]

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
        """Copy updated parameters back to the modules, where these are not views of the optimizers' vectors.

        This is the case for parameters that several optimizers train.
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
        with ExitStack() as stack:
            for flat in self.flat:
                stack.enter_context(flat.replaceable())
            try:
                self.take(tensors)
                for optimizer in self.optimizers:
                    optimizer.lr = next(tensors)
                yield self._after
            finally:
                for optimizer, optimizer.slots, optimizer.count, optimizer.lr in kept:
                    optimizer.drop()

    def _after(self) -> list[Tensor]:
        return self.tensors()[: -len(self.optimizers)]

"""The mutable state of a gradient step, which tracing replaces by the inputs of the traced function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target


class MutableState:
    """All tensors that a gradient step changes (parameters, optimizer state, step counts), and the learning rates.

    Args:
        optimizers: the optimizers that the step uses.
        targets: the target networks that the step updates.
    """

    def __init__(self, optimizers: Sequence[Optimizer], targets: Sequence[Target]) -> None:
        self.optimizers = [*optimizers]
        self.flat = [*(o.parameters for o in optimizers), *(t.parameters for t in targets)]

    def tensors(self) -> list[Tensor]:
        """Return the current tensors; the learning rates are at the end of the list.

        Parameters that several optimizers train are first updated to their newest values.
        """
        for flat in self.flat:
            flat.gather()
        rules = [tensor for o in self.optimizers for tensor in (*o.slots.values(), o.count)]
        return [*(flat.vector for flat in self.flat), *rules, *(o.lr for o in self.optimizers)]

    def memory(self) -> list[int]:
        """Return the positions of the optimizer state in the list that `tensors` returns."""
        slots = {id(slot) for o in self.optimizers for slot in o.slots.values()}
        return [place for place, tensor in enumerate(self.tensors()) if id(tensor) in slots]

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Replace the state by the given tensors; their order is that of `tensors()`, without the learning rates."""
        for flat in self.flat:
            flat.take(next(tensors))
        for optimizer in self.optimizers:
            optimizer.slots = {name: next(tensors) for name in optimizer.slots}
            optimizer.count = next(tensors)

    def give(self) -> None:
        """Copy updated vectors to parameters that are stored in another optimizer's vector."""
        for flat in self.flat:
            flat.to_module()

    def drop(self) -> None:
        """Discard the accumulated gradients of an interrupted step."""
        for optimizer in self.optimizers:
            optimizer.drop()

    @contextmanager
    def apart(self, tensors: Iterator[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Return a context manager in which the given tensors replace the state, in the order of `tensors()`.

        It yields a function that returns the tensors as changed inside the context, without the learning rates.
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

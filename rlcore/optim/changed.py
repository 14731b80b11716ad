"""Changed: the tensors that a whole gradient step reads and writes, exchanged for others in a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target


class Changed:
    """Parameters, what rules remember and counts: all that a step changes; and learning rates, which it reads.

    Args:
        optimizers: whose steps it takes.
        targets: that it moves.
    """

    def __init__(self, optimizers: Sequence[Optimizer], targets: Sequence[Target]) -> None:
        self.optimizers = [*optimizers]
        self.flat = [*(o.parameters for o in optimizers), *(t.parameters for t in targets)]

    def tensors(self) -> list[Tensor]:
        """Every such tensor, learning rates last; of parameters that another optimizer has changed, as they are now."""
        for flat in self.flat:
            flat.gather()
        rules = [tensor for o in self.optimizers for tensor in (*o.slots.values(), o.count)]
        return [*(flat.vector for flat in self.flat), *rules, *(o.lr for o in self.optimizers)]

    def memory(self) -> list[int]:
        """Places in `tensors` of what rules remember."""
        slots = {id(slot) for o in self.optimizers for slot in o.slots.values()}
        return [place for place, tensor in enumerate(self.tensors()) if id(tensor) in slots]

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Make these, in the order of `tensors`, what is read next; learning rates are not among them."""
        for flat in self.flat:
            flat.take(next(tensors))
        for optimizer in self.optimizers:
            optimizer.slots = {name: next(tensors) for name in optimizer.slots}
            optimizer.count = next(tensors)

    def give(self) -> None:
        """Hand vectors that were written into to parameters that lie elsewhere."""
        for flat in self.flat:
            flat.give()

    def drop(self) -> None:
        """Forget the gradients of a step that was broken off."""
        for optimizer in self.optimizers:
            optimizer.drop()

    @contextmanager
    def apart(self, tensors: Iterator[Tensor]) -> Iterator[Callable[[], list[Tensor]]]:
        """Within it these stand in the place of its own; gives what tells those that were changed."""
        kept = [(o, o.slots, o.count, o.lr) for o in self.optimizers]
        with ExitStack() as stack:
            for flat in self.flat:
                stack.enter_context(flat.standing())
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

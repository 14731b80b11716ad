"""A loss, its gradient and what follows from it as one compiled function, built for the shapes of its first inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rlcore.compiled import machine_code
from rlcore.compiled.held import Held, Reading, inputs_of, layout
from rlcore.errors import RunError
from rlcore.functional.tree import rebuild
from rlcore.optim.flat import FlatParameters

if TYPE_CHECKING:
    from rlcore.compiled.door import Compiler

# What an optimizer reads and writes, its gradient [P], the samples' weight -> tensors that the function gives.
Follow = Callable[[Sequence[Tensor], Tensor, Tensor], Sequence[Tensor]]


class Made(NamedTuple):
    """Tensors that follow from the gradient, the loss's means and what it found for later losses."""

    tensors: list[Tensor]
    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]


class CompiledLoss:
    """A loss of one module that may read others.

    Args:
        loss: `rlcore.optim.optimizer.Loss`.
        modules: the one whose parameters are trained, and those that the loss reads beside it.
        parameters: of the first.
        autocast: in which the loss is computed.
        compiler: of the run.
        decides: what the code follows from beside the loss and the modules.
    """

    def __init__(
        self,
        loss: Callable[..., tuple[Any, ...]],
        modules: Sequence[nn.Module],
        parameters: FlatParameters,
        autocast: Callable[[], Any],
        compiler: Compiler,
        decides: dict[str, Any],
    ) -> None:
        self.loss, self.modules, self.parameters, self.autocast = loss, [*modules], parameters, autocast
        # All that the loss may read beside what is trained: other modules, frozen parameters, buffers.
        self._held = Held(self.modules, parameters.tensors)
        self._compiler = compiler
        self._decides = compiler.facts(f"{loss.__module__}.{getattr(loss, '__qualname__', loss)}")
        self._decides |= {"modules": [*map(repr, self.modules)]} | decides
        self._function: Callable[[list[Tensor]], list[Tensor]] | None = None
        self._layout: list[Any] = []
        self._names: list[list[str]] = [[], []]  # of the means, of what is for later losses

    @property
    def built(self) -> bool:
        """Whether there is a function."""
        return self._function is not None

    def __call__(self, state: Sequence[Tensor], inputs: Sequence[Any]) -> Made:
        """Compute all of it; `build` comes first."""
        given = self._given(state, inputs)
        assert layout(given[len(given) - len(self._layout) :]) == self._layout, "the step was compiled for other shapes"
        assert self._function is not None
        made, (names, kept) = self._function(given), self._names
        at = len(made) - len(names) - len(kept)
        found = iter(made[at:])
        return Made(made[:at], {name: next(found) for name in names}, {name: next(found) for name in kept})

    def build(self, state: Sequence[Tensor], inputs: Sequence[Any], follow: Follow, whole: bool, began: bool) -> bool:
        """Have machine code made for inputs like these, where they can be traced.

        Args:
            state: what `follow` reads, the parameters' vector first.
            inputs: of the loss.
            follow: what is computed from the gradient.
            whole: whether that is a step.
            began: the run has learned with a compiled one.

        Returns:
            Whether it can be called now; as the loss is written, where it cannot be traced.

        Raises:
            UserError: a run that began compiled cannot be traced here, as by another torch.
        """
        example = self._given(state, inputs)
        self._layout = layout(example[len(state) + len(self._held.names) :])
        made_of, decides = (self.loss, *self.modules), self._decides | {"whole": whole}
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(decides, seed, lambda: self._names, made_of, prepare=prepare)
        try:
            function = self._function_of(len(state), inputs, follow)
            self._function, self._names = machine_code.made_once("the minibatch step", function, example, facts)
        except RunError:
            raise
        except Exception as error:  # whatever tracing meets in somebody's loss
            machine_code.leave_as_written("the minibatch step", "a compiled step", began, error)
        return self.built

    def _given(self, state: Sequence[Tensor], inputs: Sequence[Any]) -> list[Tensor]:
        return [*state, *self._held.tensors(), *inputs_of(inputs)]

    def _function_of(self, states: int, inputs: Sequence[Any], follow: Follow) -> Callable[..., tuple[Tensor, ...]]:
        objective, held = Reading(nn.ModuleList(self.modules), self.loss), self._held.names

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
            return *follow(state, self.parameters.join(parts.values()), weight), *found

        return function

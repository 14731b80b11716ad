"""A loss and its gradient as one compiled function, for runs with several ranks.

The sum of the gradients over ranks cannot be compiled. With one rank, the gradient step is compiled as one function
(`rlcore.compiled.whole_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.func import grad_and_value

from rlcore.compiled import machine_code
from rlcore.compiled.captured import CapturedTensors, Reading, inputs_of, layout
from rlcore.compiler import Compiler
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder, draw_all
from rlcore.functional.tree import rebuild


class ParameterVector(Protocol):
    """Interface of parameters that are stored in one vector [P]; implemented by `rlcore.optim.flat.FlatParameters`."""

    vector: Tensor
    tensors: list[Tensor]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a vector [P] into views with the shapes of the parameters; return parameter name -> view."""
        ...

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """Concatenate tensors, one for each parameter in the order of the parameters, to a vector [P]."""
        ...


class GradientOutput(NamedTuple):
    """Results of a compiled gradient.

    Attributes:
        gradient: gradient of the loss, [P].
        weight: sum of the sample weights, [].
        metrics: means to log, name -> [].
        aux: tensors that a later loss needs, name -> [...].
    """

    gradient: Tensor
    weight: Tensor
    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]


class CompiledGradient:
    """Compiled gradient of a loss with respect to the parameters of one module; the loss may read other modules.

    Args:
        loss: function of the type `rlcore.optim.optimizer.Loss`.
        modules: the trained module, followed by all other modules that the loss reads.
        parameters: parameters of the trained module.
        autocast: function that returns the context manager (mixed precision) in which the loss is computed.
        compiler: compilation settings of the run.
    """

    def __init__(
        self,
        loss: Callable[..., tuple[Any, ...]],
        modules: Sequence[nn.Module],
        parameters: ParameterVector,
        autocast: Callable[[], Any],
        compiler: Compiler,
    ) -> None:
        self.loss, self.modules, self.parameters, self.autocast = loss, [*modules], parameters, autocast
        # Everything else that the loss may read: other modules, frozen parameters, buffers.
        self._captured = CapturedTensors(self.modules, parameters.tensors)
        self._compiler = compiler
        self._decides = compiler.facts(loss) | {"modules": [*map(repr, self.modules)]}
        self._function: Callable[[list[Tensor]], list[Tensor]] | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._names: list[list[Any]] = [[], [], []]  # means, auxiliary outputs, indices of replaced buffers

    @property
    def built(self) -> bool:
        """True if the gradient has been compiled."""
        return self._function is not None

    def __call__(self, inputs: Sequence[Any]) -> GradientOutput:
        """Compute the gradient for the given inputs of the loss; `build` must have been called."""
        noise = next((each for each in inputs if isinstance(each, Noise)), None)
        given = self._gather(inputs, noise)
        assert layout(given[len(given) - len(self._layout) :]) == self._layout, "the step was compiled for other shapes"
        assert self._function is not None
        gradient, weight, *rest = self._function(given)
        (means, kept, replaced), left = self._names, iter(rest)
        output = GradientOutput(
            gradient, weight, {name: next(left) for name in means}, {name: next(left) for name in kept}
        )
        self._captured.replace({index: next(left) for index in replaced})
        return output

    def build(self, inputs: Sequence[Any], began: bool) -> bool:
        """Compile the gradient, if the loss can be traced.

        Args:
            inputs: example inputs of the loss, which define the only supported shapes and dtypes. If one of them is a
                random stream, this method draws nothing from it; each later call draws the numbers that the loss needs.
            began: True if earlier gradient steps of this run were compiled, so that eager code is not allowed.

        Returns:
            True if the gradient was compiled; False if it must be computed as eager code.

        Raises:
            RunError: if `began` is True and the gradient cannot be compiled now.
            UserError: if `began` is True and the loss cannot be traced, for example with another version of torch.
        """
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(
            self._decides, seed, lambda: self._names, (self.loss, *self.modules), prepare=prepare
        )
        try:
            recorder = next((Recorder(each.device) for each in inputs if isinstance(each, Noise)), None)
            if recorder is not None:  # record which noise the loss draws; the run's stream is not used
                self._function_of(inputs, recorder)(*self._gather(inputs))
                self._draws = [*recorder.draws]
            example = self._gather(inputs, recorder)
            self._layout = layout(example[1 + len(self._captured.names) :])
            self._function, self._names = machine_code.make_once(
                "the gradient", self._function_of(inputs), example, facts
            )
        except Exception as error:  # tracing can raise any exception in a user's loss
            machine_code.leave_as_written("the gradient", "compiled gradient steps", began, error)
        return self.built

    def _gather(self, inputs: Sequence[Any], noise: Noise | None = None) -> list[Tensor]:
        return [
            *(self.parameters.vector, *self._captured.tensors()),
            *(*draw_all(noise, self._draws), *inputs_of(_without_noise(inputs))),
        ]

    def _function_of(self, inputs: Sequence[Any], noise: Noise | None = None) -> Callable[..., tuple[Tensor, ...]]:
        """Return the function of tensors to trace, which computes the loss and its gradient.

        With `noise`, the loss draws random numbers from that stream; without it, they are inputs of the function.
        """
        objective, captured, draws = (
            Reading(nn.ModuleList(self.modules), self.loss),
            self._captured.names,
            len(self._draws),
        )

        def function(vector: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            borrowed, left = dict(zip(captured, tensors, strict=False)), iter(tensors[len(captured) :])
            stream = noise or Drawn(iter([next(left) for _ in range(draws)]))
            records = rebuild(_without_noise(inputs), left)
            given = [stream if isinstance(own, Noise) else record for own, record in zip(inputs, records, strict=True)]

            def value(named: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
                parts = {f"members.0.{name}": part for name, part in named.items()} | borrowed
                with self.autocast():
                    total, weight, means, *aux = objective.call(parts, given)
                kept = aux[0] if aux else {}
                after = objective.after
                replaced = [i for i, name in enumerate(captured) if name in after and after[name] is not borrowed[name]]
                self._names = [[*means], [*kept], replaced]
                return total, (weight, [*means.values(), *kept.values(), *(after[captured[i]] for i in replaced)])

            parts, (_, (weight, rest)) = grad_and_value(value, has_aux=True)(self.parameters.split(vector))
            return self.parameters.join(parts.values()), weight, *rest

        return function


def _without_noise(inputs: Sequence[Any]) -> list[Any]:
    return [None if isinstance(each, Noise) else each for each in inputs]

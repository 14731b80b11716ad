"""A loss and its gradient as one compiled function, built for the shapes of its first inputs: for ranks that sum it."""

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
    """Parameters that lie in one vector [P]: `rlcore.optim.flat` has them."""

    vector: Tensor
    tensors: list[Tensor]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector, by parameter name."""
        ...

    def join(self, parts: Iterable[Tensor]) -> Tensor:
        """The vector of such parts, in the parameters' order."""
        ...


class GradientOutput(NamedTuple):
    """Gradient [P] of a loss, its samples' weight [], its means and what it found for later losses."""

    gradient: Tensor
    weight: Tensor
    metrics: dict[str, Tensor]
    aux: dict[str, Tensor]


class CompiledGradient:
    """The gradient of a loss of one module that may read others.

    Args:
        loss: `rlcore.optim.optimizer.Loss`.
        modules: the one whose parameters are trained, and those that the loss reads beside it.
        parameters: of the first.
        autocast: in which the loss is computed.
        compiler: of the run.
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
        # All that the loss may read beside what is trained: other modules, frozen parameters, buffers.
        self._held = CapturedTensors(self.modules, parameters.tensors)
        self._compiler = compiler
        self._decides = compiler.facts(loss) | {"modules": [*map(repr, self.modules)]}
        self._function: Callable[[list[Tensor]], list[Tensor]] | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._names: list[list[Any]] = [[], [], []]  # means, auxiliary outputs, indices of replaced held buffers

    @property
    def built(self) -> bool:
        """True once there is a function."""
        return self._function is not None

    def __call__(self, inputs: Sequence[Any]) -> GradientOutput:
        """Compute it for these inputs of the loss; `build` comes first."""
        noise = next((each for each in inputs if isinstance(each, Noise)), None)
        given = self._gather(inputs, noise)
        assert layout(given[len(given) - len(self._layout) :]) == self._layout, "the step was compiled for other shapes"
        assert self._function is not None
        gradient, weight, *found = self._function(given)
        (means, kept, replaced), left = self._names, iter(found)
        made = GradientOutput(
            gradient, weight, {name: next(left) for name in means}, {name: next(left) for name in kept}
        )
        self._held.replace({index: next(left) for index in replaced})
        return made

    def build(self, inputs: Sequence[Any], began: bool) -> bool:
        """Have machine code made for inputs like these, where they can be traced.

        Args:
            inputs: of the loss; a stream of noise among them is drawn from as the loss does.
            began: the run has learned with a compiled one.

        Returns:
            Whether it can be called now; as the loss is written, where it cannot be traced.

        Raises:
            UserError: a run that began compiled cannot be traced here, as by another torch.
        """
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(
            self._decides, seed, lambda: self._names, (self.loss, *self.modules), prepare=prepare
        )
        try:
            recorder = next((Recorder(each.device) for each in inputs if isinstance(each, Noise)), None)
            if recorder is not None:  # which noise the loss draws; nothing is drawn from the run's
                self._function_of(inputs, recorder)(*self._gather(inputs))
                self._draws = [*recorder.draws]
            example = self._gather(inputs, recorder)
            self._layout = layout(example[1 + len(self._held.names) :])
            self._function, self._names = machine_code.make_once(
                "the gradient", self._function_of(inputs), example, facts
            )
        except Exception as error:  # whatever tracing meets in somebody's loss
            machine_code.leave_as_written("the gradient", "a compiled step", began, error)
        return self.built

    def _gather(self, inputs: Sequence[Any], noise: Noise | None = None) -> list[Tensor]:
        return [
            *(self.parameters.vector, *self._held.tensors()),
            *(*draw_all(noise, self._draws), *inputs_of(_without_noise(inputs))),
        ]

    def _function_of(self, inputs: Sequence[Any], noise: Noise | None = None) -> Callable[..., tuple[Tensor, ...]]:
        """The gradient of all that it reads as tensors; with a stream, the loss draws from that."""
        objective, held, draws = Reading(nn.ModuleList(self.modules), self.loss), self._held.names, len(self._draws)

        def function(vector: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            borrowed, left = dict(zip(held, tensors, strict=False)), iter(tensors[len(held) :])
            stream = noise or Drawn(iter([next(left) for _ in range(draws)]))
            records = rebuild(_without_noise(inputs), left)
            given = [stream if isinstance(own, Noise) else record for own, record in zip(inputs, records, strict=True)]

            def value(named: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
                parts = {f"members.0.{name}": part for name, part in named.items()} | borrowed
                with self.autocast():
                    total, weight, means, *aux = objective.call(parts, given)
                kept = aux[0] if aux else {}
                after = objective.after
                replaced = [i for i, name in enumerate(held) if name in after and after[name] is not borrowed[name]]
                self._names = [[*means], [*kept], replaced]
                return total, (weight, [*means.values(), *kept.values(), *(after[held[i]] for i in replaced)])

            parts, (_, (weight, found)) = grad_and_value(value, has_aux=True)(self.parameters.split(vector))
            return self.parameters.join(parts.values()), weight, *found

        return function


def _without_noise(inputs: Sequence[Any]) -> list[Any]:
    return [None if isinstance(each, Noise) else each for each in inputs]

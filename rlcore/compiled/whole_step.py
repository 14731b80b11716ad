"""A gradient step as machine code: one function of all that it changes and reads, of noise and of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from rlcore.compiled import machine_code
from rlcore.compiled.captured import CapturedTensors, inputs_of, layout
from rlcore.compiler import Compiler
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder, draw_all
from rlcore.functional.tree import rebuild

# Inputs, and a stream of noise or None -> means for the log, name -> [].
StepFunction = Callable[[Sequence[Any], Any], dict[str, Tensor]]


class StepTensors(Protocol):
    """The tensors that a step changes, and the learning rates that it reads: `rlcore.optim.mutable_state` has them."""

    def tensors(self) -> list[Tensor]:
        """Every such tensor, learning rates last."""
        ...

    def memory(self) -> list[int]:
        """Places in `tensors` of what rules remember."""
        ...

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Make these what is read next; learning rates are not among them."""
        ...

    def give(self) -> None:
        """Hand vectors that were written into to parameters that lie elsewhere."""
        ...

    def drop(self) -> None:
        """Forget the gradients of a step that was broken off."""
        ...

    def apart(self, tensors: Iterator[Tensor]) -> AbstractContextManager[Callable[[], list[Tensor]]]:
        """Within it these stand in their place; gives what tells those that were changed."""
        ...


class CompiledStep:
    """A step that compiles whole, for the shapes of the first inputs.

    Args:
        function: the step.
        changed: what it changes.
        held: what else it reads: buffers, and modules that it does not train.
        compiler: of the run.
        decides: what the code follows from.
        made_of: the functions and modules whose code it is.
    """

    def __init__(
        self,
        function: StepFunction,
        changed: StepTensors,
        held: CapturedTensors,
        compiler: Compiler,
        decides: dict[str, Any],
        made_of: Sequence[Any],
    ) -> None:
        self.function, self._changed, self._held = function, changed, held
        self._compiler, self._decides, self._made_of = compiler, decides, made_of
        self._code: machine_code.Compiled | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._found: list[list[Any]] = [[], []]  # names of the means; which of what is held it replaces

    @property
    def built(self) -> bool:
        """True once there is machine code."""
        return self._code is not None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> dict[str, Tensor]:
        """Take the step; `build` comes first."""
        given = [*draw_all(rng, self._draws), *inputs_of(inputs)]
        assert layout(given) == self._layout, "the step was compiled for other shapes"
        assert self._code is not None
        made = iter(self._code([*self._changed.tensors(), *self._held.tensors(), *given]))
        self._changed.take(made)
        names, replaced = self._found
        self._held.replace({index: next(made) for index in replaced})
        return dict(zip(names, made, strict=True))

    def build(self, inputs: Sequence[Any], rng: Noise | None, began: bool) -> bool:
        """Have machine code made for inputs like these.

        Args:
            inputs: of the step.
            rng: its stream of noise; nothing is drawn from it.
            began: the run has learned with a compiled one.

        Returns:
            Whether it can be called now; as the step is written, where it cannot be traced.

        Raises:
            UserError: a run that began compiled cannot be traced here, as by another torch.
        """
        try:
            recorder = None if rng is None else Recorder()
            self._apart([*self._changed.tensors(), *self._held.tensors()], inputs, recorder)
            self._draws = [] if recorder is None else [*recorder.draws]
            self._make(inputs, recorder)
        except Exception as error:  # whatever tracing meets in somebody's loss
            machine_code.leave_as_written("the gradient step", "a compiled step", began, error)
        return self.built

    def _make(self, inputs: Sequence[Any], noise: Noise | None) -> None:
        given = [*draw_all(noise, self._draws), *inputs_of(inputs)]
        example = [*self._changed.tensors(), *self._held.tensors(), *given]
        known = len(example) - len(given)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors[known:])
            drawn = None if noise is None else Drawn(iter([next(left) for _ in self._draws]))
            return self._apart(tensors[:known], rebuild(inputs, left), drawn)

        self._layout = layout(given)
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(self._decides, seed, lambda: self._found, self._made_of, prepare=prepare)
        memory = self._changed.memory()
        self._code, self._found = machine_code.make_once("the gradient step", function, example, facts, memory)

    def _apart(self, tensors: Sequence[Tensor], inputs: Sequence[Any], rng: Any) -> tuple[Tensor, ...]:
        """Take the step with these tensors in the place of its own; gives what changed, replaced buffers and means.

        Its own are as before when it is done.
        """
        left, own = iter(tensors), dict(enumerate(self._held.own()))
        with self._changed.apart(left) as changed:
            held = [*left]
            self._held.replace(dict(enumerate(held)))
            try:
                metrics = self.function(inputs, rng)
                after = self._held.own()
                replaced = [index for index, tensor in enumerate(held) if after[index] is not tensor]
                self._found = [[*metrics], replaced]
                return *changed(), *(after[index] for index in replaced), *metrics.values()
            finally:
                self._held.replace(own)

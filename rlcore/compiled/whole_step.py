"""Gradient steps as machine code: one function of the tensors that it changes and reads, of noise and of its inputs."""

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

# (inputs, noise stream or None) -> mean metrics for the log, name -> [].
StepFunction = Callable[[Sequence[Any], Any], dict[str, Tensor]]


class StepTensors(Protocol):
    """Tensors that a step changes, and its learning rates (implemented in `rlcore.optim.mutable_state`)."""

    def tensors(self) -> list[Tensor]:
        """Return all these tensors, learning rates last."""
        ...

    def memory(self) -> list[int]:
        """Return the indices of optimizer state in `tensors`."""
        ...

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Replace the tensors, except the learning rates, by these."""
        ...

    def give(self) -> None:
        """Copy changed parameter vectors to parameters that are stored elsewhere."""
        ...

    def drop(self) -> None:
        """Discard the gradients of a step that was interrupted."""
        ...

    def apart(self, tensors: Iterator[Tensor]) -> AbstractContextManager[Callable[[], list[Tensor]]]:
        """Return a context manager in which these tensors replace those of the step, in the order of `tensors()`.

        It yields a function that returns the tensors as changed inside the context, without the learning rates.
        """
        ...


class CompiledStep:
    """Gradient step that is compiled as one function, for the shapes of the first inputs.

    Args:
        function: the step.
        changed: tensors that the step changes.
        captured: other tensors that it reads: buffers, and modules that it does not train.
        compiler: compilation settings of the run.
        decides: cache-key inputs of the code.
        made_of: functions and modules whose code is traced.
    """

    def __init__(
        self,
        function: StepFunction,
        changed: StepTensors,
        captured: CapturedTensors,
        compiler: Compiler,
        decides: dict[str, Any],
        made_of: Sequence[Any],
    ) -> None:
        self.function, self._changed, self._captured = function, changed, captured
        self._compiler, self._decides, self._made_of = compiler, decides, made_of
        self._code: machine_code.Compiled | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._outputs: list[list[Any]] = [[], []]  # names of the metrics; indices in `captured` that it replaces

    @property
    def built(self) -> bool:
        """True if the step is compiled."""
        return self._code is not None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> dict[str, Tensor]:
        """Execute the step; call `build` first."""
        given = [*draw_all(rng, self._draws), *inputs_of(inputs)]
        assert layout(given) == self._layout, "the step was compiled for other shapes"
        assert self._code is not None
        outputs = iter(self._code([*self._changed.tensors(), *self._captured.tensors(), *given]))
        self._changed.take(outputs)
        names, replaced = self._outputs
        self._captured.replace({index: next(outputs) for index in replaced})
        return dict(zip(names, outputs, strict=True))

    def build(self, inputs: Sequence[Any], rng: Noise | None, began: bool) -> bool:
        """Compile the step for inputs of these shapes, if it can be traced.

        Args:
            inputs: inputs of the step.
            rng: its noise stream; nothing is drawn from it.
            began: True if the run has learned with a compiled step.

        Returns:
            True if the compiled step can be called now; False if the step stays eager code.

        Raises:
            UserError: if the run began compiled and the step cannot be traced here, for example by another torch.
        """
        try:
            recorder = None if rng is None else Recorder()
            self._apart([*self._changed.tensors(), *self._captured.tensors()], inputs, recorder)
            self._draws = [] if recorder is None else [*recorder.draws]
            self._make(inputs, recorder)
        except Exception as error:  # tracing can raise any exception in a user's loss
            machine_code.leave_as_written("the gradient step", "a compiled step", began, error)
        return self.built

    def _make(self, inputs: Sequence[Any], noise: Noise | None) -> None:
        given = [*draw_all(noise, self._draws), *inputs_of(inputs)]
        example = [*self._changed.tensors(), *self._captured.tensors(), *given]
        known = len(example) - len(given)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors[known:])
            drawn = None if noise is None else Drawn(iter([next(left) for _ in self._draws]))
            return self._apart(tensors[:known], rebuild(inputs, left), drawn)

        self._layout = layout(given)
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(self._decides, seed, lambda: self._outputs, self._made_of, prepare=prepare)
        memory = self._changed.memory()
        self._code, self._outputs = machine_code.make_once("the gradient step", function, example, facts, memory)

    def _apart(self, tensors: Sequence[Tensor], inputs: Sequence[Any], rng: Any) -> tuple[Tensor, ...]:
        """Execute the step with these tensors instead of its own; return changed tensors, replaced buffers and metrics.

        The step's own tensors are restored afterwards.
        """
        left, own = iter(tensors), dict(enumerate(self._captured.own()))
        with self._changed.apart(left) as changed:
            captured = [*left]
            self._captured.replace(dict(enumerate(captured)))
            try:
                metrics = self.function(inputs, rng)
                after = self._captured.own()
                replaced = [index for index, tensor in enumerate(captured) if after[index] is not tensor]
                self._outputs = [[*metrics], replaced]
                return *changed(), *(after[index] for index in replaced), *metrics.values()
            finally:
                self._captured.replace(own)

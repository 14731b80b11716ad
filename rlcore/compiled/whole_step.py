"""Gradient steps as machine code.

A gradient step is compiled as one function. Its inputs are the parameters and optimizer state that the step changes,
all other tensors that it reads, the random numbers it needs, and the batch. It returns the changed tensors and metrics.
"""

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
    """Interface of the tensors that a gradient step changes, and of its learning rates.

    The tensors are parameter vectors, optimizer state and step counts. `rlcore.optim.mutable_state` implements this
    interface.
    """

    def tensors(self) -> list[Tensor]:
        """Return the current tensors that the step changes, followed by the learning rates."""
        ...

    def memory(self) -> list[int]:
        """Return the indices of the optimizer state in the result of `tensors()`."""
        ...

    def take(self, tensors: Iterator[Tensor]) -> None:
        """Replace the tensors by the given ones; the order is that of `tensors()`, without the learning rates."""
        ...

    def give(self) -> None:
        """Copy the changed parameter vectors to those parameters that are not views of the vectors."""
        ...

    def drop(self) -> None:
        """Discard the accumulated gradients of a step that was interrupted."""
        ...

    def apart(self, tensors: Iterator[Tensor]) -> AbstractContextManager[Callable[[], list[Tensor]]]:
        """Return a context manager in which the step uses other tensors; at its end, the originals are restored.

        Args:
            tensors: tensors to use, in the order of `tensors()`.

        Returns:
            The context manager. It yields a function that returns the tensors after the step has changed them, in the
            order of `tensors()`, without the learning rates.
        """
        ...


class CompiledStep:
    """Gradient step that is compiled to machine code as one function.

    The machine code supports only inputs with the shapes and dtypes of those passed to `build`.

    Args:
        function: the gradient step as eager code.
        changed: tensors that the step changes: parameters and optimizer state; also the learning rates.
        captured: other tensors that the step reads: buffers, and parameters of modules that it does not train.
        compiler: compilation settings of the run.
        decides: everything that affects the traced operations, for the cache key.
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
        """True if the step has been compiled."""
        return self._code is not None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> dict[str, Tensor]:
        """Take one gradient step; `build` must have been called.

        Args:
            inputs: inputs of the step, with the shapes of those passed to `build`.
            rng: stream from which the random numbers of the step are drawn; None if the step needs none.

        Returns:
            Mean metrics for the log, name -> [].
        """
        given = [*draw_all(rng, self._draws), *inputs_of(inputs)]
        assert layout(given) == self._layout, "the step was compiled for other shapes"
        assert self._code is not None
        outputs = iter(self._code([*self._changed.tensors(), *self._captured.tensors(), *given]))
        self._changed.take(outputs)
        names, replaced = self._outputs
        self._captured.replace({index: next(outputs) for index in replaced})
        return dict(zip(names, outputs, strict=True))

    def build(self, inputs: Sequence[Any], rng: Noise | None, began: bool) -> bool:
        """Compile the step, if it can be traced.

        Args:
            inputs: example inputs of the step, which define the only supported shapes and dtypes.
            rng: stream that later calls of the step draw from, None if the step needs no random numbers; this method
                draws nothing from it.
            began: True if earlier gradient steps of this run were compiled, so that eager code is not allowed.

        Returns:
            True if the step was compiled; False if it must be executed as eager code.

        Raises:
            RunError: if `began` is True and the step cannot be compiled now.
            UserError: if `began` is True and the step cannot be traced, for example with another version of torch.
        """
        try:
            recorder = None if rng is None else Recorder()
            self._apart([*self._changed.tensors(), *self._captured.tensors()], inputs, recorder)
            self._draws = [] if recorder is None else [*recorder.draws]
            self._make(inputs, recorder)
        except Exception as error:  # tracing can raise any exception in a user's loss
            machine_code.leave_as_written("the gradient step", "compiled gradient steps", began, error)
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
        """Execute the step as eager code on other tensors, and restore its original tensors afterwards.

        Args:
            tensors: tensors to use instead of those in `changed` and `captured`, in this order.
            inputs: inputs of the step.
            rng: random stream of the step.

        Returns:
            The changed tensors without learning rates, then the buffers that the step has replaced, then the metrics.
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

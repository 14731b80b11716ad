"""Gradient steps as machine code, and the parameters and buffers of modules as inputs of compiled functions.

A gradient step is compiled as one function. Its inputs are the parameters and optimizer state that the step changes,
all other tensors that it reads, the random numbers it needs, and the batch. It returns the changed tensors and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.compiler import Compiler
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder, draw_all
from rlcore.functional.tree import leaves, rebuild

Results = Sequence[dict[str, Tensor]]  # means to log, name -> [], and optionally other tensors, name -> [...]
StepFunction = Callable[[Sequence[Any], Any], Results]  # (inputs, noise stream or None) -> results


class CapturedTensors:
    """Fast access to the current parameters and buffers of modules.

    The modules are traversed once, in the constructor, because each traversal takes 40 µs. A tensor that several
    modules share is listed once.

    Args:
        modules: modules with a fixed structure; their parameters and buffers may be replaced.
        without: parameters and buffers to exclude.
    """

    def __init__(self, modules: Sequence[nn.Module], without: Iterable[Tensor] = ()) -> None:
        excluded = {id(tensor) for tensor in without}
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}  # by the tensor's id: all attributes that refer to it
        held = [getattr(owner, kind) for m in modules for kind in ("_parameters", "_buffers") for owner in m.modules()]
        for owner_tensors in {id(tensors): tensors for tensors in held}.values():
            for key, tensor in owner_tensors.items():
                if tensor is not None and id(tensor) not in excluded:
                    places.setdefault(id(tensor), []).append((owner_tensors, key))
        self._places = [*places.values()]
        self._first = [spots[0] for spots in self._places]

    def __len__(self) -> int:
        return len(self._places)

    def tensors(self) -> list[Tensor]:
        """Return the current parameters and buffers, detached, in a fixed order."""
        return [owner_tensors[key].detach() for owner_tensors, key in self._first]

    def addresses(self) -> list[int]:
        """Return the memory address of each parameter and buffer.

        As long as the addresses stay the same, an earlier result of `tensors()` can be used again.
        """
        return [owner_tensors[key].data_ptr() for owner_tensors, key in self._first]

    def own(self) -> list[Tensor]:
        """Return the current parameters and buffers without detaching them, in the order of `tensors()`."""
        return [owner_tensors[key] for owner_tensors, key in self._first]

    def replace(self, tensors: Mapping[int, Tensor]) -> None:
        """Replace parameters and buffers of the modules; `tensors` maps an index in `tensors()` to the new tensor."""
        for index, tensor in tensors.items():
            for owner_tensors, key in self._places[index]:
                owner_tensors[key] = tensor

    @contextmanager
    def replaced(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Context manager in which the modules have other parameters and buffers, in the order of `tensors()`."""
        own = self.own()
        self.replace(dict(enumerate(tensors)))
        try:
            yield
        finally:
            self.replace(dict(enumerate(own)))


def inputs_of(record: Any) -> list[Tensor]:
    """Return the tensors of a nested structure as a list of contiguous tensors, as machine code requires."""
    return [tensor.contiguous() for tensor in leaves(record)]


def layout(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the shape and dtype of each tensor, to compare them with those a function was compiled for."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


class StepTensors(Protocol):
    """Interface of the tensors that a gradient step changes, and of those that replace them while it is traced.

    The tensors are parameter vectors, optimizer state, step counts and learning rates. `rlcore.optim.traced`
    implements this interface.
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
        what: description of the function for messages.
    """

    def __init__(
        self,
        function: StepFunction,
        changed: StepTensors,
        captured: CapturedTensors,
        compiler: Compiler,
        decides: dict[str, Any],
        made_of: Sequence[Any],
        what: str = "the gradient step",
    ) -> None:
        self.function, self._changed, self._captured, self._what = function, changed, captured, what
        self._compiler, self._decides, self._made_of = compiler, decides, made_of
        self._code: machine_code.Compiled | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._outputs: list[list[Any]] = [[], []]  # names of the results; indices in `captured` that it replaces

    @property
    def built(self) -> bool:
        """True if the step has been compiled."""
        return self._code is not None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> Results:
        """Take one gradient step; `build` must have been called.

        Args:
            inputs: inputs of the step, with the shapes of those passed to `build`.
            rng: stream from which the random numbers of the step are drawn; None if the step needs none.

        Returns:
            Results of the function: dicts of tensors.
        """
        given = [*draw_all(rng, self._draws), *inputs_of(inputs)]
        assert layout(given) == self._layout, "the step was compiled for other shapes"
        assert self._code is not None
        outputs = iter(self._code([*self._changed.tensors(), *self._captured.tensors(), *given]))
        self._changed.take(outputs)
        names, replaced = self._outputs
        self._captured.replace({index: next(outputs) for index in replaced})
        found = [{name: next(outputs) for name in part} for part in names]
        assert next(outputs, None) is None, "the step has more outputs than names"
        return found

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
            machine_code.leave_as_written(self._what, "compiled gradient steps", began, error)
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
        self._code, self._outputs = machine_code.make_once(self._what, function, example, facts, memory)

    def _apart(self, tensors: Sequence[Tensor], inputs: Sequence[Any], rng: Any) -> tuple[Tensor, ...]:
        """Execute the step as eager code on other tensors, and restore its original tensors afterwards.

        Args:
            tensors: tensors to use instead of those in `changed` and `captured`, in this order.
            inputs: inputs of the step.
            rng: random stream of the step.

        Returns:
            The changed tensors without learning rates, then the buffers that the step has replaced, then its results.
        """
        left = iter(tensors)
        with self._changed.apart(left) as changed:
            captured = [*left]
            with self._captured.replaced(captured):
                results = self.function(inputs, rng)
                after = self._captured.own()
                replaced = [index for index, tensor in enumerate(captured) if after[index] is not tensor]
                self._outputs = [[*map(list, results)], replaced]
                found = [value for part in results for value in part.values()]
                return *changed(), *(after[index] for index in replaced), *found

"""Gradient steps as CUDA graphs: the kernels are recorded once and then launched together.

A CUDA graph always reads and writes the memory addresses that were used while it was recorded. Parameters and optimizer
state keep their addresses, because they are updated in place. Inputs, random numbers, and buffers that code has
replaced by new tensors are copied to the recorded addresses before each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rlcore.compiled import machine_code
from rlcore.compiled.fused_scan import fusing
from rlcore.compiled.whole_step import CapturedTensors, Results, StepFunction, StepTensors, layout
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder, draw_all
from rlcore.functional.tree import leaves, rebuild
from rlcore.system.training_clock import not_training

MOST = 100_000  # operations of a graph with several gradient steps; torch needs kilobytes for each of them
WARM_UP = 3  # calls before a recording, as torch requires: in these, libraries choose kernels and allocate memory
Recorded = tuple[Callable[[], None], Results]  # function that replays the graph, and its output tensors


class RecordedTensors(StepTensors, Protocol):
    """Interface of the tensors that a recorded gradient step changes."""

    def give(self) -> None:
        """Copy the changed parameter vectors to those parameters that are not views of the vectors."""
        ...

    def drop(self) -> None:
        """Discard the accumulated gradients of a step that was interrupted."""
        ...


class RecordedStep:
    """Gradient step that is recorded as a CUDA graph; it executes the same operations as the eager step.

    The graph supports only inputs with the shapes of those passed to `build`.

    Args:
        function: the gradient step as eager code.
        changed: tensors that the step changes: parameters and optimizer state; also the learning rates.
        captured: other tensors that the step reads: buffers, and parameters of modules that it does not train.
        what: description of the function for messages.
        most: maximum number of operations; None: no maximum.
    """

    def __init__(
        self,
        function: StepFunction,
        changed: RecordedTensors,
        captured: CapturedTensors,
        what: str = "the gradient step",
        most: int | None = None,
    ) -> None:
        self.function, self._changed, self._captured, self._what, self._most = function, changed, captured, what, most
        self._recorded: Recorded | None = None
        self._draws: list[Draw] = []
        self._given: list[Tensor] = []  # recorded noise and inputs
        self._recorded_tensors: list[Tensor] = []  # `captured` when the step was recorded
        self._kept: list[Tensor] = []  # references to all tensors that it reads, so that their memory is not reused

    @property
    def built(self) -> bool:
        """True if the step has been recorded."""
        return self._recorded is not None

    @property
    def device(self) -> torch.device:
        """Device of the tensors that the step changes."""
        return self._changed.tensors()[0].device

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> Results:
        """Take one gradient step; `build` must have been called.

        Args:
            inputs: inputs of the step, with the shapes of those passed to `build`.
            rng: stream from which the random numbers of the step are drawn; None if the step needs none.

        Returns:
            Results of the function: dicts of tensors.
        """
        given = [*draw_all(rng, self._draws), *leaves(inputs)]
        assert layout(given) == layout(self._given), "the step was compiled for other shapes"
        assert self._recorded is not None
        for place, value in zip(self._given, given, strict=True):
            _write(place, value)
        self._settle()
        replay, results = self._recorded
        replay()
        return [{name: value.clone() for name, value in part.items()} for part in results]

    def repeated(self, function: StepFunction) -> RecordedStep:
        """Return a recording of a function that takes this gradient step several times, for example in a loop."""
        what = "the loop over the gradient steps of an update"
        return RecordedStep(function, self._changed, self._captured, what, MOST)

    @not_training()
    def build(self, inputs: Sequence[Any], rng: Noise | None, began: bool) -> bool:
        """Record the step as a CUDA graph, without a lasting change of parameters, optimizer state, buffers or `rng`.

        Args:
            inputs: example inputs; only their shapes and dtypes matter.
            rng: stream that later calls of the step draw from; None if the step needs no random numbers.
            began: True if earlier gradient steps of this run were recorded, so that eager code is not allowed.

        Returns:
            True if the step was recorded; False if it must be executed as eager code.

        Raises:
            UserError: if the step cannot be recorded and `began` is True.
        """
        self._recorded_tensors = self._captured.own()
        own = [tensor.detach() for tensor in (*self._changed.tensors(), *self._recorded_tensors)]
        before = [tensor.clone() for tensor in own]
        try:
            self._record(inputs, None if rng is None else Recorder(own[0].device), own[0].device)
        except Exception as error:  # recording can raise any exception in a user's loss
            self._recorded = None
            machine_code.leave_as_written(self._what, "gradient steps recorded as a CUDA graph", began, error)
        finally:
            self._captured.replace(dict(enumerate(self._recorded_tensors)))
            for tensor, value in zip(own, before, strict=True):
                tensor.copy_(value)
            self._changed.give()
            self._changed.drop()
        return self.built

    def _record(self, inputs: Sequence[Any], noise: Recorder | None, device: torch.device) -> None:
        places = [value.detach().to(device, copy=True) for value in leaves(inputs)]
        with Watch(device, self._most) as watch:
            self.function(rebuild(inputs, iter(places)), noise)
            self._settle()
        self._draws = [] if noise is None else [*noise.draws]
        drawn = [getattr(noise, kind)(*shape) for kind, shape in self._draws]
        self._given, self._kept = [*drawn, *places], [*watch.read.values()]

        def once() -> Results:
            left = iter(self._given)
            stream = None if noise is None else Drawn(iter([next(left) for _ in drawn]))
            results = self.function(rebuild(inputs, left), stream)
            self._settle()
            return [{name: value.detach() for name, value in part.items()} for part in results]

        self._recorded = record(once, device)

    @torch.no_grad()
    def _settle(self) -> None:
        """Copy the values of replaced buffers to the recorded buffers, and put the recorded ones into the modules."""
        now = self._captured.own()
        others = {i: tensor.clone() for i, tensor in enumerate(now) if tensor is not self._recorded_tensors[i]}
        for i, value in others.items():
            self._recorded_tensors[i].copy_(value)
        self._captured.replace({i: self._recorded_tensors[i] for i in others})


def record(function: Callable[[], Results], device: torch.device) -> Recorded:
    """Record a function as a CUDA graph, after three calls (`WARM_UP`) without recording.

    Args:
        function: function without arguments that returns dicts of tensors.
        device: GPU on which the function launches kernels.

    Returns:
        A function that replays the graph, and the tensors to which each replay writes the results.
    """
    with fusing() as loops, torch.cuda.device(device):

        def call() -> Results:
            loops.begin()
            return function()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # The default mode forbids allocations by other threads, such as those of autograd.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            results = call()
        torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, results


def _write(place: Tensor, value: Tensor) -> None:
    """Copy `value` to the recorded input tensor `place` without waiting for the GPU."""
    if value.device.type == "cpu" and value.dim() == 0:
        place.fill_(value.item())
    else:
        place.copy_(value, non_blocking=True)


class Watch(TorchDispatchMode):
    """Context manager that checks whether a function can be recorded as a CUDA graph.

    It raises RuntimeError on operations that wait for a value from the GPU, which a CUDA graph cannot contain, and if
    there are more operations than `most`. It also collects the tensors that the function reads but did not create, in
    the attribute `read`.
    """

    def __init__(self, device: torch.device, most: int | None = None) -> None:
        super().__init__()
        self.device, self.most, self.operations, self.read = device, most, 0, dict[int, Tensor]()
        self._created: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute a torch operation; raise RuntimeError if it copies a value from the GPU to the CPU."""
        here = [part for part in _tensors((args, kwargs or {})) if part.device == self.device]
        self.operations += 1
        if self.most is not None and self.operations > self.most:
            raise RuntimeError(f"it has more than {self.most:,} operations, too many for one CUDA graph")
        to_host = self.device.type != "cpu" and str((kwargs or {}).get("device")) == "cpu"
        if here and (to_host or str(func).startswith(WAITS)):
            raise RuntimeError(f"the operation {func} waits for a value from the GPU, which a CUDA graph cannot do")
        result = func(*args, **(kwargs or {}))
        self.read.update({id(part): part for part in here if part not in self._created})
        self._created.update(dict.fromkeys(_tensors(result)))
        return result


WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.masked_select", "aten._unique")


def _tensors(record: Any) -> list[Tensor]:
    return [part for part in tree_leaves(record) if isinstance(part, Tensor)]

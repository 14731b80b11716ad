"""A gradient step as a CUDA graph: its kernels are recorded once and then started all at once.

A graph reads and writes the memory that it was recorded with. Parameters and what rules remember stay where they are
and are written in place; inputs, noise and buffers that somebody has replaced are copied to where the first ones lay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from rlcore.compiled import machine_code
from rlcore.compiled.captured import CapturedTensors, layout
from rlcore.compiled.fused_scan import fusing
from rlcore.compiled.whole_step import StepFunction, StepTensors
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder, draw_all
from rlcore.functional.tree import leaves, rebuild
from rlcore.system.training_clock import not_training

WARM_UP = 3  # calls before a recording, as torch asks for: libraries choose their kernels and memory in them
Recorded = tuple[Callable[[], None], dict[str, Tensor]]  # what starts it again, and where its results lie


class RecordedStep:
    """A step that is recorded for the shapes of its first inputs; the step is no other than as it is written.

    Args:
        function: the step.
        changed: what it changes.
        held: what else it reads: buffers, and modules that it does not train.
    """

    def __init__(self, function: StepFunction, changed: StepTensors, held: CapturedTensors) -> None:
        self.function, self._changed, self._held = function, changed, held
        self._recorded: Recorded | None = None
        self._draws: list[Draw] = []
        self._given: list[Tensor] = []  # where noise and inputs lie
        self._stand: list[Tensor] = []  # what was held when it was recorded
        self._kept: list[Tensor] = []  # all that it read: nobody else may be given that memory

    @property
    def built(self) -> bool:
        """True once the step is recorded."""
        return self._recorded is not None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None) -> dict[str, Tensor]:
        """Take the step; `build` comes first."""
        given = [*draw_all(rng, self._draws), *leaves(inputs)]
        assert layout(given) == layout(self._given), "the step was compiled for other shapes"
        assert self._recorded is not None
        for place, value in zip(self._given, given, strict=True):
            _write(place, value)
        self._settle()
        replay, found = self._recorded
        replay()
        return {name: value.clone() for name, value in found.items()}

    @not_training()
    def build(self, inputs: Sequence[Any], rng: Noise | None, began: bool) -> bool:
        """Record it for inputs like these, where it can be; all that it changes is as before, nothing is drawn.

        A UserError where it cannot and the run `began` with a recorded one.
        """
        self._stand = self._held.own()
        own = [tensor.detach() for tensor in (*self._changed.tensors(), *self._stand)]
        before = [tensor.clone() for tensor in own]
        try:
            self._record(inputs, None if rng is None else Recorder(own[0].device), own[0].device)
        except Exception as error:  # whatever recording meets in somebody's loss
            self._recorded = None
            machine_code.leave_as_written("the gradient step", "a recorded step", began, error)
        finally:
            self._held.replace(dict(enumerate(self._stand)))
            for tensor, value in zip(own, before, strict=True):
                tensor.copy_(value)
            self._changed.give()
            self._changed.drop()
        return self.built

    def _record(self, inputs: Sequence[Any], noise: Recorder | None, device: torch.device) -> None:
        places = [value.detach().to(device, copy=True) for value in leaves(inputs)]
        with Watch(device) as watch:
            self.function(rebuild(inputs, iter(places)), noise)
            self._settle()
        self._draws = [] if noise is None else [*noise.draws]
        drawn = [getattr(noise, kind)(*shape) for kind, shape in self._draws]
        self._given, self._kept = [*drawn, *places], [*watch.read.values()]

        def once() -> dict[str, Tensor]:
            left = iter(self._given)
            stream = None if noise is None else Drawn(iter([next(left) for _ in drawn]))
            metrics = self.function(rebuild(inputs, left), stream)
            self._settle()
            return {name: value.detach() for name, value in metrics.items()}

        self._recorded = record(once, device)

    @torch.no_grad()
    def _settle(self) -> None:
        """Write into what was held at first what others are held now; then those are held again."""
        now = self._held.own()
        others = {i: tensor.clone() for i, tensor in enumerate(now) if tensor is not self._stand[i]}
        for i, value in others.items():
            self._stand[i].copy_(value)
        self._held.replace({i: self._stand[i] for i in others})


def record(function: Callable[[], dict[str, Tensor]], device: torch.device) -> Recorded:
    """Record the kernels that a function starts on a device; it is called some times before."""
    with fusing() as loops, torch.cuda.device(device):

        def call() -> dict[str, Tensor]:
            loops.begin()
            return function()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # By its default no other thread could take memory meanwhile, such as one that autograd computes in.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found = call()
        torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, found


def _write(place: Tensor, value: Tensor) -> None:
    """Copy an input to its place; of a number only the number goes to the device, nobody waits."""
    if value.device.type == "cpu" and value.dim() == 0:
        place.fill_(value.item())
    else:
        place.copy_(value, non_blocking=True)


class Watch(TorchDispatchMode):
    """Sees what a function reads on a device and has not made, and refuses what waits for it: no graph holds that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.read = device, dict[int, Tensor]()
        self._made: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation; a RuntimeError where it reads a number on the device."""
        here = [part for part in _tensors((args, kwargs or {})) if part.device == self.device]
        if here and str(func).startswith(WAITS):
            raise RuntimeError(f"it waits for a number of the device ({func})")
        made = func(*args, **(kwargs or {}))
        self.read.update({id(part): part for part in here if part not in self._made})
        self._made.update(dict.fromkeys(_tensors(made)))
        return made


WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.masked_select", "aten._unique")


def _tensors(record: Any) -> list[Tensor]:
    return [part for part in tree_leaves(record) if isinstance(part, Tensor)]

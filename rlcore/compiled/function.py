"""A function of tensors that reads modules, compiled ahead of time for the shapes of its first inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore.compiled import machine_code
from rlcore.compiled.door import Compiler
from rlcore.compiled.held import Held, Reading


class CompiledFunction:
    """A function without gradient, of tensors alone: tensors [...] -> tensors; to be called with the same shapes.

    Args:
        what: it does, for messages.
        function: what it computes, with the modules as they are.
        modules: whose parameters and buffers it reads.
        compiler: of the run.
        calls: other functions that it calls and that are not this program's in every run.
    """

    def __init__(
        self,
        what: str,
        function: Callable[..., Sequence[Tensor]],
        modules: Sequence[nn.Module],
        compiler: Compiler,
        calls: Sequence[Any] = (),
    ) -> None:
        self.what, self.function, self.modules, self.calls = what, function, modules, calls
        self._held = Held(modules)
        self._seed, self._prepare = compiler.config.seed, compiler.prepare
        self._decides = compiler.facts(f"{function.__module__}.{getattr(function, '__qualname__', function)}") | {
            "modules": [*map(repr, modules)]
        }
        self._compiled: machine_code.Compiled | None = None
        self._layout: list[Any] = []

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """What the function makes of these inputs."""
        given = [*self._held.tensors(), *(value.contiguous() for value in inputs)]
        layout = [(value.shape, value.dtype) for value in inputs]
        if self._compiled is None:
            self._layout = layout
            made_of = (self.function, *self.calls, *self.modules)
            facts = machine_code.Facts(self._decides, self._seed, lambda: [], made_of, prepare=self._prepare)
            self._compiled, _ = machine_code.made_once(self.what, self._traced(), given, facts)
        assert layout == self._layout, "the function was compiled for other shapes"
        return self._compiled(given)

    def _traced(self) -> Callable[..., tuple[Tensor, ...]]:
        reading, names = Reading(nn.ModuleList(self.modules), self.function), self._held.names

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            held, inputs = dict(zip(names, given, strict=False)), given[len(names) :]
            with torch.no_grad():
                return tuple(functional_call(reading, held, inputs))

        return function

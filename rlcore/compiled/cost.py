"""Arithmetic of a run: what its gradient steps compute, counted instead of computed, and what compiling saves of it.

A step of small networks is a thousand small operations, and each costs some microseconds before it computes anything:
compiled, that is gone. Products of large matrices take the time they take.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Seconds that compiling saves, one thread of a processor of 2023: of an operation (1.1 ms of PPO's 219); of an answer.
AN_OPERATION, AN_ACTION = 5e-6, 1e-4
# Floating-point operations a second in products of matrices, which compiling leaves as they are; of a GPU. There, a
# recorded step saves 11 to 16 microseconds of an operation (docs/results/gpu.md), and acting stays as it is.
RATE, RATE_OF_GPU = 1e11, 1e14
SHARE = 0.05  # of a step's time, from which a saving is one


@dataclass(frozen=True)
class Arithmetic:
    """Gradient steps and answers that a run is to compute.

    Attributes:
        steps: gradient steps of a rank.
        operations: of torch in one of them.
        flops: floating-point operations in one of them, in products of matrices and convolutions.
        calls: answers of the agent that would be compiled.
        rate: floating-point operations a second.
    """

    steps: int
    operations: float
    flops: float
    calls: int
    rate: float = RATE

    @property
    def step_saved(self) -> float:
        """Seconds that compiling saves of one gradient step; 0 where that would not be noticed."""
        saved = AN_OPERATION * self.operations
        return saved if saved >= SHARE * (saved + self.flops / self.rate) else 0.0

    @property
    def saved(self) -> float:
        """Seconds that compiling saves of the run."""
        return self.steps * self.step_saved + (self.calls * AN_ACTION if self.step_saved else 0.0)

    def __str__(self) -> str:
        """A line for the run's log."""
        each = f"{self.steps:,} gradient steps of {self.operations:,.0f} operations and {self.flops / 1e6:,.1f} MFLOP"
        return (
            f"{each}; compiled, each saves {self.step_saved * 1e3:.1f} ms, the run with its actions {self.saved:,.0f} s"
        )


@dataclass
class Counter:
    """In the place of machine code: what is called again and again is done the first time only, and counted.

    Attributes:
        found: what was called -> its first result, operations and floating-point operations of one call, calls.
    """

    found: dict[Hashable, list[Any]] = field(default_factory=dict)
    _within: bool = False

    def once(self, name: Hashable, function: Callable[[], Any]) -> Any:
        """Result of the function the first time that it was called under this name."""
        if self._within:  # what calls it is counted
            return function()
        if name not in self.found:
            self._within = True
            try:
                with _Operations() as operations:
                    result = function()
            finally:
                self._within = False
            self.found[name] = [result, operations.count, operations.flops, 0]
        self.found[name][3] += 1
        return self.found[name][0]

    def totals(self) -> tuple[int, int]:
        """Operations and floating-point operations of all calls so far."""
        rows = self.found.values()
        return sum(row[1] * row[3] for row in rows), sum(row[2] * row[3] for row in rows)


class _Operations(TorchDispatchMode):
    """Operations within and their arithmetic, which `FlopCounterMode` counts too, in half as much time again."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its tracer for it, two processor seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found, formula = func(*args, **kwargs), flop_registry.get(func.overloadpacket)
        self.count += 1
        self.flops += formula(*args, **kwargs, out_val=found) if formula else 0
        return found

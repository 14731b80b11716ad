"""Estimate of the time that compilation saves in a run, from the number of operations in its gradient steps.

A gradient step of small networks consists of about a thousand small operations. Each operation has an overhead of some
microseconds, which compilation removes. Compilation does not speed up products of large matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# Seconds that compilation saves per operation (1.1 ms for the 219 operations of PPO's step) and per call of the policy,
# measured with one thread of a CPU of 2023.
AN_OPERATION, AN_ACTION = 5e-6, 1e-4
# Floating-point operations per second in products of matrices, on a CPU and on a GPU; compilation does not change them.
# On a GPU, recording saves 11 to 16 µs per operation (docs/results/gpu.md), and policy inference is not recorded.
RATE, RATE_OF_GPU = 1e11, 1e14
SHARE = 0.05  # smaller fractions of a step's time do not count as a saving


@dataclass(frozen=True)
class Arithmetic:
    """Number of gradient steps and policy calls of a run, and the cost of a gradient step.

    Attributes:
        steps: number of gradient steps of each rank in the run.
        operations: number of torch operations in one gradient step, on average.
        flops: number of floating-point operations in the matrix products and convolutions of one gradient step.
        calls: number of policy calls in the run; 0 if policy inference would not be compiled.
        rate: assumed speed of the device in floating-point operations per second.
    """

    steps: int
    operations: float
    flops: float
    calls: int
    rate: float = RATE

    @property
    def step_saved(self) -> float:
        """Seconds that compilation saves in a gradient step; 0 if they are less than 5 % (`SHARE`) of its time."""
        saved = AN_OPERATION * self.operations
        return saved if saved >= SHARE * (saved + self.flops / self.rate) else 0.0

    @property
    def saved(self) -> float:
        """Seconds that compilation saves in all gradient steps and policy calls of the run."""
        return self.steps * self.step_saved + (self.calls * AN_ACTION if self.step_saved else 0.0)

    def __str__(self) -> str:
        """Return a description for the run's log."""
        each = f"{self.steps:,} gradient steps of {self.operations:,.0f} operations and {self.flops / 1e6:,.1f} MFLOP"
        return (
            f"{each}; compiled, each saves {self.step_saved * 1e3:.1f} ms, the run with its actions {self.saved:,.0f} s"
        )


@dataclass
class Counter:
    """Substitute for compiled code in a dry run: executes each function once and counts its calls.

    Attributes:
        found: name of a function -> [result of the first call, number of operations in this call, number of
            floating-point operations in this call, number of calls].
    """

    found: dict[Hashable, list[Any]] = field(default_factory=dict)
    _within: bool = False

    def once(self, name: Hashable, function: Callable[[], Any]) -> Any:
        """Execute `function` in the first call with `name`; later calls with this name return the first result.

        Calls of `once` inside `function` do not reuse results: they always execute their function, so that its cost is
        included in the cost of `function`.
        """
        if self._within:  # its operations are counted as part of the outer function
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
        """Return the number of operations and the number of floating-point operations, summed over all calls."""
        rows = self.found.values()
        return sum(row[1] * row[3] for row in rows), sum(row[2] * row[3] for row in rows)


class _Operations(TorchDispatchMode):
    """Counter of operations and floating-point operations; torch's `FlopCounterMode` takes 1.5 times as long."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because torch would otherwise import its tracer, which takes two CPU seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found, formula = func(*args, **kwargs), flop_registry.get(func.overloadpacket)
        self.count += 1
        self.flops += formula(*args, **kwargs, out_val=found) if formula else 0
        return found

"""Scan: a loop over time, which is a single operation if it is part of a compiled function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlcore.functional.tree import leaves, map_leaves, rebuild

LoopBody = Callable[[Any, Any, Any], tuple[Any, Any]]
Loop = Callable[[LoopBody, Any, Any, Any], tuple[Any, Any]]  # function with the arguments and results of `scan`


class _Current(threading.local):
    """Thread-local variable: function that executes the loops of this thread; None = a loop in Python."""

    loop: Loop | None = None


_current = _Current()


def scan(step: LoopBody, carry: Any, xs: Any, params: Any = ()) -> tuple[Any, Any]:
    """Execute a loop over time: carry, y[t] = step(carry, xs[t], params) for t = 0, 1, ..., T - 1.

    Eager code executes the loop in Python, and so does compiled code if T = 1. In machine code with T > 1, the loop is
    a single operation, whose size does not depend on T (`rlcore.compiled.scan`). In a CUDA graph, each step is compiled
    to a few fused kernels (`rlcore.compiled.fused_scan`). Gradients flow to the initial carry, xs and params.

    Args:
        step: function of the carry, one row of xs, and params. It returns the next carry, whose shapes and dtypes must
            be those of the initial carry, and the output y. It must not read other tensors than its arguments. It may
            call `scan`.
        carry: initial carry (recurrent state), nested tensors.
        xs: inputs of the steps, nested tensors [T, ...]. If episodes can start within the T rows, pass the flag that
            resets the carry, such as `is_first`, as one of them.
        params: nested tensors that every step reads, such as `dict(cell.named_parameters())` for `functional_call`.

    Returns:
        The carry after the last step, and the outputs y of all steps, stacked to [T, ...].

    Raises:
        CompilationError: in a compiled function, if the step reads a tensor that requires a gradient and is not one of
            its arguments.
    """
    length = len(leaves(xs)[0])
    assert all(len(x) == length for x in leaves(xs)), "all tensors of xs must have the same length"
    if length > 1 and _current.loop is not None:
        return _current.loop(step, carry, xs, params)
    found: list[Any] = []
    for t in range(length):
        carry, y = step(carry, map_leaves(lambda x, t=t: x[t], xs), params)
        found.append(leaves(y))
    return carry, rebuild(y, iter([torch.stack(column) for column in zip(*found, strict=True)]))


@contextmanager
def executed_by(loop: Loop | None) -> Iterator[None]:
    """Context manager in which this thread executes the loops of T > 1 steps by another function.

    The compiler uses it while it traces or records a function.

    Args:
        loop: function with the arguments and results of `scan`; None: loops are executed in Python.
    """
    before, _current.loop = _current.loop, loop
    try:
        yield
    finally:
        _current.loop = before

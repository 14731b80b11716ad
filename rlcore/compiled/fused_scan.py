"""Loops over time in a CUDA graph, with each step compiled to a few fused kernels.

Without fusion, a step of a Dreamer's model and its gradient launch about a hundred kernels, and the GPU is idle longer
than it computes. Here torch's compiler compiles the step once, and it is launched for each t. The backward pass
computes the step again together with its gradient, as in `rlcore.compiled.scan`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlcore.compiled.loop_step import Flat, choose, go_back, precision_now, split, spread, trace_step
from rlcore.compiled.package import kernels_folder

Kernels = Callable[..., Sequence[Tensor]]


@dataclass
class FusedLoop:
    """Kernels of one loop in a function that is called repeatedly; they are compiled when the loop is first executed.

    Attributes:
        shapes: shapes of the loop's input tensors.
        forms: nested structure of a step's y; empty before the first execution.
        forward: the step.
        backward: the step, computed again, and its gradient.
        products: for each weight, True if its gradient is a product after the loop (`expose_products`).
    """

    shapes: list[torch.Size] = field(default_factory=list[torch.Size])
    forms: list[Any] = field(default_factory=list[Any])
    forward: Kernels | None = None
    backward: Kernels | None = None
    products: list[bool] = field(default_factory=list[bool])


class Loops:
    """Fused loops of a function, in the order in which each call of the function executes them."""

    def __init__(self) -> None:
        self._known: list[FusedLoop] = []
        self._met = 0

    def begin(self) -> None:
        """Start a call of the function: the next loop is its first one."""
        self._met = 0

    def meet(self) -> FusedLoop:
        """Return the next loop; in the first call, create it."""
        self._met += 1
        if self._met > len(self._known):
            self._known.append(FusedLoop())
        return self._known[self._met - 1]


class _Here(threading.local):
    """Loops that this thread fuses; None if it fuses nothing."""

    loops: Loops | None = None


_here = _Here()


@contextmanager
def fusing() -> Iterator[Loops]:
    """Context manager in which the steps of loops are fused; call `begin` of the result before each function call."""
    before, loops = _here.loops, Loops()
    _here.loops = loops
    try:
        yield loops
    finally:
        _here.loops = before


@contextmanager
def _fusing_nothing() -> Iterator[None]:
    """Context manager in which loops are not fused.

    Steps are traced inside it. Python executes a step only once, when it is traced. A loop inside the step would
    therefore be counted in this call of the function but not in later calls, and the order of the loops would differ.
    """
    before, _here.loops = _here.loops, None
    try:
        yield
    finally:
        _here.loops = before


def loop_now() -> FusedLoop | None:
    """Return the loop to execute now; None if loops are not fused."""
    return None if _here.loops is None else _here.loops.meet()


def go_through_time(loop: FusedLoop, flat: Flat, sizes: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Execute a loop over time with fused steps.

    Args:
        loop: kernels of the loop.
        flat: step as a function of tensors: carry, one row of xs, params -> next carry, other outputs.
        sizes: number of tensors in carry, xs [T, ...] and params.
        tensors: all of these tensors, in that order.

    Returns:
        The carry after the last step, and the other outputs of all steps, [T, ...].

    Raises:
        RuntimeError: if the tensors have other shapes than when `loop` was first executed, because the function now
            executes its loops in another order. Also if a step reads parameters that are not its inputs.
    """
    loop.shapes = loop.shapes or [tensor.shape for tensor in tensors]
    if loop.shapes != [tensor.shape for tensor in tensors]:
        raise RuntimeError("loops over time are executed in another order than in the first call")
    # Kernels are compiled for the strides of their first inputs.
    return [*_Run.apply(loop, flat, tuple(sizes), *(tensor.contiguous() for tensor in tensors))]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loop: FusedLoop, flat: Flat, sizes: Sequence[int], *tensors: Tensor) -> Any:
        carry, xs, params = split(tensors, sizes)
        olds, rows = list[Tensor](), list[Sequence[Tensor]]()
        for t in range(len(xs[0])):
            given = [*carry, *(x[t] for x in xs), *params]
            if loop.forward is None:
                with _fusing_nothing():
                    loop.forward = fuse(trace_step(flat, given), given)
            olds += carry
            carry, row = split(loop.forward(*given), [sizes[0], None])
            rows.append(row)
        outputs = (*carry, *(torch.stack(column) for column in zip(*rows, strict=True)))
        ctx.floating = [tensor.is_floating_point() for tensor in outputs]
        ctx.mark_non_differentiable(*(t for t, floating in zip(outputs, ctx.floating, strict=True) if not floating))
        ctx.loop, ctx.flat, ctx.sizes = loop, flat, sizes
        ctx.precision = precision_now(outputs[0].device.type)
        ctx.save_for_backward(*olds, *xs, *params)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        loop, (count, *others) = ctx.loop, ctx.sizes
        olds, xs, params = split(ctx.saved_tensors, [len(ctx.saved_tensors) - sum(others), *others])
        _, of_xs, of_params = split(ctx.needs_input_grad[3:], ctx.sizes)
        floating = ctx.floating[:count]
        given = [gradient.contiguous() for gradient in choose(gradients, ctx.floating)]
        through, by_row = split(given, [sum(floating), None])
        rows = list[Sequence[Tensor]]()
        for t in reversed(range(len(xs[0]))):
            old, row = olds[t * count : (t + 1) * count], [x[t] for x in xs]
            given = [*through, *(g[t] for g in by_row), *old, *row, *params]
            if loop.backward is None:
                back = go_back(ctx.flat, ctx.sizes, (floating, of_xs, of_params), ctx.precision)
                with _fusing_nothing():
                    graph = trace_step(back, given)
                loop.products = expose_products(graph, len(through) + sum(of_xs))
                loop.backward = fuse(graph, given)
            through, row = split(loop.backward(*given), [len(through), None])
            rows.append(row)
        of_x, of_param = split([torch.stack(column[::-1]) for column in zip(*rows, strict=True)], [sum(of_xs), None])
        left = iter(of_param)
        summed = [_multiply(next(left), next(left)) if product else next(left).sum(0) for product in loop.products]
        summed = [total.to(p.dtype) for total, p in zip(summed, choose(params, of_params), strict=True)]
        return None, None, None, *spread(through, floating), *spread(of_x, of_xs), *spread(summed, of_params)


def expose_products(graph: Any, first: int) -> list[bool]:
    """Replace each weight gradient that is a product over a step's B rows by the two factors of the product.

    The gradient is then one product over all T·B rows after the loop, so a tensor of the weight's size is not added T
    times.

    Args:
        graph: a step and its gradient; changed in place.
        first: index of the first weight gradient among the graph's outputs; all later outputs are weight gradients too.

    Returns:
        For each weight, True if the graph now returns the factors [B, out] and [B, in].
    """
    aten, exposed = torch.ops.aten, list[bool]()
    passed = (aten.t.default, aten.clone.default, aten.detach.default, aten._to_copy.default)
    output = graph.graph.output_node()
    given, weights = split(output.args[0], [first, None])
    with graph.graph.inserting_before(output):
        for part in weights:
            node, turned = part, False
            while node.target in passed:
                node, turned = node.args[0], turned ^ (node.target is aten.t.default)
            exposed.append(node.target is aten.mm.default)
            if exposed[-1]:
                one, other = node.args  # [out, B] and [B, in]; turned, [in, B] and [B, out]
                one = graph.graph.call_function(aten.t.default, (one,))
                factors = (other, one) if turned else (one, other)
                form = {"memory_format": torch.contiguous_format}
                given += [graph.graph.call_function(aten.clone.default, (factor,), form) for factor in factors]
            else:
                given.append(part)
    output.args = (tuple(given),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return exposed


def _multiply(out: Tensor, given: Tensor) -> Tensor:
    """Multiply the factors [T, B, out] and [T, B, in] of a weight gradient [out, in]."""
    return out.flatten(0, 1).t() @ given.flatten(0, 1)


def fuse(graph: Any, example: Sequence[Tensor]) -> Kernels:
    """Compile a graph's operations to kernels.

    A second compilation gives the same numbers, because nothing is autotuned. Raises RuntimeError if the graph reads
    parameters that are not its inputs.
    """
    if any(isinstance(value, nn.Parameter) for value in (*vars(graph).values(), *graph.parameters())):
        raise RuntimeError("a step of a loop over time reads parameters that are not its inputs (scan's `params`)")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernels_folder()))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        from torch import _inductor  # imported here because torch's compiler takes seconds to import
        from torch._inductor import config  # imported here because torch's compiler takes seconds to import

        with config.patch(deterministic=True, compile_threads=1):
            kernels: Any = _inductor.compile(graph, [*example])
    return kernels

"""Loops over time in a CUDA graph: torch's compiler fuses each loop step to a few kernels.

Without fusion, one time step of a Dreamer world model and its gradient launch about a hundred kernels, and the GPU is
idle most of the time. With fusion, the step is compiled once, and its kernels are launched for each time step. The
backward pass computes each step again together with its gradient, as in `rlcore.compiled.scan`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlcore.compiled.loop_step import Flat, by_tensors, choose, go_back, precision_now, split, spread, trace_step
from rlcore.compiled.package import kernels_folder
from rlcore.functional.scan import LoopBody, executed_by

Kernels = Callable[..., Sequence[Tensor]]


@dataclass
class FusedLoop:
    """Compiled kernels of one loop over time (a call of `scan`); compiled when the loop is first executed.

    Attributes:
        shapes: shapes of the tensors that are passed to the loop.
        forms: list with one example of a step's output y, for its nested structure; empty before the first execution.
        forward: kernels of one step; None before the first forward pass.
        backward: kernels that compute one step again, and its gradient; None before the first backward pass.
        products: for each weight, True if its gradient is computed as one matrix product after the loop (see
            `expose_products`).
    """

    shapes: list[torch.Size] = field(default_factory=list[torch.Size])
    forms: list[Any] = field(default_factory=list[Any])
    forward: Kernels | None = None
    backward: Kernels | None = None
    products: list[bool] = field(default_factory=list[bool])


class Loops:
    """Compiled loops of one function; a loop is identified by its position in the order of execution.

    Each call of the function must therefore execute its loops in the same order.
    """

    def __init__(self) -> None:
        self._known: list[FusedLoop] = []
        self._met = 0

    def begin(self) -> None:
        """Start a new call of the function: `meet` then returns the first loop again."""
        self._met = 0

    def meet(self) -> FusedLoop:
        """Return the next loop in the order of execution; during the first call of the function, create it."""
        self._met += 1
        if self._met > len(self._known):
            self._known.append(FusedLoop())
        return self._known[self._met - 1]

    def execute(self, step: LoopBody, carry: Any, xs: Any, params: Any) -> tuple[Any, Any]:
        """Execute the next loop; arguments and results are those of `rlcore.functional.scan.scan`."""
        loop = self.meet()
        return by_tensors(partial(go_through_time, loop), loop.forms, step, carry, xs, params)


@contextmanager
def fusing() -> Iterator[Loops]:
    """Context manager for repeated calls of one function, in which the steps of its loops over time are fused.

    Yields:
        The loops of the function; call `begin` of this object before each call of the function.
    """
    loops = Loops()
    with executed_by(loops.execute):
        yield loops


def _trace_alone(step: Flat, given: Sequence[Tensor]) -> Any:
    """Trace a loop step to a graph; loops inside the step are not fused separately.

    Python executes the code of a step only when the step is traced. A loop inside the step would therefore be counted
    in the first call of the function but not in later calls, and the positions of all later loops would be wrong.
    """
    with executed_by(None):
        return trace_step(step, given)


def go_through_time(loop: FusedLoop, flat: Flat, sizes: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Execute a loop over time with fused steps.

    Args:
        loop: kernels of the loop; compiled by this function if they do not exist yet.
        flat: one step as a function of tensors: carry, one row of each tensor in xs, params -> next carry, y.
        sizes: number of tensors in carry, in xs and in params.
        tensors: the tensors of the initial carry, then those of xs [T, ...], then those of params.

    Returns:
        The tensors of the carry after the last step, followed by the tensors of y for all steps, [T, ...].

    Raises:
        RuntimeError: if the tensors have other shapes than in the first execution of `loop`; the function then
            executes its loops in another order than before. Also if a step reads parameters that are not its inputs.
    """
    loop.shapes = loop.shapes or [tensor.shape for tensor in tensors]
    if loop.shapes != [tensor.shape for tensor in tensors]:
        raise RuntimeError(
            "a function in a CUDA graph must execute its loops over time (scan) in the same order in every call; this "
            "loop has other shapes than the loop at its position in the first call"
        )
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
                loop.forward = fuse(_trace_alone(flat, given), given)
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
                graph = _trace_alone(back, given)
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
    """Change a step's graph so that it returns the factors of weight gradients instead of the gradients.

    The gradient of a weight matrix is usually a product of two matrices with B rows. If each step returns these two
    matrices, the sum of the gradients of T steps is a single product over T·B rows, which is computed after the loop.
    Otherwise T tensors of the weight's size would have to be added.

    Args:
        graph: traced graph of a step and its gradient; changed in place.
        first: index of the first weight gradient among the graph's outputs; all later outputs are weight gradients too.

    Returns:
        For each weight, True if the graph now returns two factors [B, out] and [B, in] for it, and False if it still
        returns the gradient because that is not a matrix product.
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
    """Compute a weight gradient [out, in] from its factors [T, B, out] and [T, B, in]."""
    return out.flatten(0, 1).t() @ given.flatten(0, 1)


def fuse(graph: Any, example: Sequence[Tensor]) -> Kernels:
    """Compile a traced graph to fused GPU kernels with torch's compiler, without autotuning.

    Kernels of the same graph therefore always compute bit-identical results.

    Args:
        graph: the traced graph.
        example: example inputs of the graph, which define shapes, strides and dtypes.

    Returns:
        A function with the inputs and outputs of the graph.

    Raises:
        RuntimeError: if the graph reads parameters that are not its inputs.
    """
    if any(isinstance(value, nn.Parameter) for value in (*vars(graph).values(), *graph.parameters())):
        raise RuntimeError(
            "a step of a loop over time reads parameters that are not its inputs; pass them to scan as `params`"
        )
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernels_folder()))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        from torch import _inductor  # imported here because torch's compiler takes seconds to import
        from torch._inductor import config  # imported here because torch's compiler takes seconds to import

        with config.patch(deterministic=True, compile_threads=1):
            kernels: Any = _inductor.compile(graph, [*example])
    return kernels

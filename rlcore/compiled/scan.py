"""Scan as a single operation of a compiled function, with a custom backward pass; `rlcore.functional.scan` calls it.

If the loop were unrolled, 64 steps of a recurrent network and their gradient would be ten thousand operations, which
take minutes to compile. With torch's scan operator, the size of the graph does not depend on the number of steps. The
forward pass stores the carry (recurrent state) before each step. The backward pass goes through the steps in reverse
order. For each one, it computes the step again from the stored carry, and multiplies the gradient by its Jacobian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlcore.compiled.loop_step import Flat, by_tensors, choose, go_back, precision_now, split, spread, trace_step
from rlcore.functional.scan import LoopBody, executed_by

_tracing = [False]  # True while a function is traced


class DataDependentScan(Exception):
    """Exception of a scan in a trace on real tensors, which cannot contain a scan; the trace must use fake tensors."""


@contextmanager
def tracing(by_shapes: bool) -> Iterator[None]:
    """Context manager for tracing a function that may call `scan`.

    Args:
        by_shapes: True for a trace on fake tensors, which have shapes but no values: each scan becomes one operation.
            False for a trace on real tensors: a scan raises `DataDependentScan`.
    """
    before, _tracing[0] = _tracing[0], True
    try:
        with executed_by(_as_operation if by_shapes else _refuse):
            yield
    finally:
        _tracing[0] = before


def _as_operation(step: LoopBody, carry: Any, xs: Any, params: Any) -> tuple[Any, Any]:
    return by_tensors(_operation, [], step, carry, xs, params)


def _refuse(*_: Any) -> tuple[Any, Any]:
    raise DataDependentScan


def refuse_sum_over_ranks() -> None:
    """Raise RuntimeError if a function is being traced, because compiled code cannot sum tensors over ranks.

    The function is then not compiled and runs as eager code.
    """
    if _tracing[0]:
        raise RuntimeError("a sum over ranks cannot be compiled")


# Scan as one operation ------------------------------------------------------------------------------------------------


def _operation(flat: Flat, sizes: Sequence[int], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Execute a loop as one operation, with a backward pass if a gradient is needed; see `_loop`."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Scan.apply(flat, sizes, *tensors)[: -sizes[0]]
    return _loop(flat, sizes, tensors)


def _loop(flat: Flat, sizes: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Execute a loop with torch's scan operator.

    Args:
        flat: one step as a function of tensors: carry, one row of each tensor in xs, params -> next carry, y.
        sizes: number of tensors in carry, in xs and in params.
        tensors: the tensors of the initial carry, then those of xs [T, ...], then those of params.

    Returns:
        The tensors of the carry after the last step, followed by the tensors of y for all steps, [T, ...].
    """
    from torch._higher_order_ops.scan import scan_op  # loads torch's compiler, as tracing does

    carry, xs, params = split(tensors, sizes)
    graph = trace_step(flat, [*carry, *(x[0] for x in xs), *params])
    with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage] - we compute the gradient
        # No two of them may share memory. Parameters do if an optimizer stores them as views of one tensor.
        carry, params = ([t.clone(memory_format=torch.contiguous_format) for t in of] for of in (carry, params))
        return tuple(scan_op(graph, carry, list(xs), tuple(params)))


class _Scan(torch.autograd.Function):
    """Autograd function of a scan; it also returns the carry before each step, which the backward pass needs."""

    @staticmethod
    def forward(flat: Flat, sizes: Sequence[int], *tensors: Tensor) -> tuple[Tensor, ...]:
        def remembering(*given: Tensor) -> tuple[Tensor, ...]:
            return *flat(*given), *(old.clone() for old in given[: sizes[0]])

        return _loop(remembering, sizes, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.flat, ctx.sizes, *tensors = inputs
        olds = output[-ctx.sizes[0] :] if ctx.sizes[0] else ()
        ctx.mark_non_differentiable(*olds, *(o for o in output if not o.is_floating_point()))
        ctx.floating = [o.is_floating_point() for o in output[: len(output) - len(olds)]]
        ctx.precision = precision_now(output[0].device.type)
        ctx.save_for_backward(*olds, *tensors[ctx.sizes[0] :])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        _, *others = split(ctx.needs_input_grad[2:], ctx.sizes)
        wanted = (ctx.floating[: ctx.sizes[0]], *others)
        back = go_back(ctx.flat, ctx.sizes, wanted, ctx.precision)
        given = choose(gradients[: len(ctx.floating)], ctx.floating)
        return None, None, *_Back.apply(back, ctx.sizes, wanted, *ctx.saved_tensors, *given)


class _Back(torch.autograd.Function):
    """Backward pass of a scan.

    It is a separate autograd function, because torch.func's transforms such as `grad` do not support the scan operator.
    """

    @staticmethod
    def forward(
        step: Flat, sizes: Sequence[int], wanted: Sequence[Sequence[bool]], *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        olds, xs, params, gradients = split(tensors, [*sizes, None])
        count = [sum(group) for group in wanted]
        last, rows = split(gradients, [count[0], None])

        def back(*given: Tensor) -> tuple[Tensor, ...]:
            carried, summed, old, x, row, fixed = split(
                given, [count[0], count[2], len(olds), len(xs), len(rows), len(params)]
            )
            of_carry, of_x, of_params = split(step(*carried, *row, *old, *x, *fixed), count)
            grown = [total + part for total, part in zip(summed, of_params, strict=True)]
            return *of_carry, *grown, *of_x

        begin = [*last, *(torch.zeros_like(p) for p in choose(params, wanted[2]))]
        through = [t.flip(0) for t in (*olds, *xs, *rows)]
        outputs = _loop(back, [len(begin), len(through), len(params)], [*begin, *through, *params])
        of_carry, of_params, of_x = split(outputs, [count[0], count[2], count[1]])
        found = (of_carry, [t.flip(0) for t in of_x], of_params)
        return tuple(part for group, of in zip(found, wanted, strict=True) for part in spread(group, of))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Do nothing; second derivatives of a scan are not supported, so no tensors need to be stored."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("second derivatives of a scan are not supported")

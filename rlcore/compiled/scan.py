"""Scan: a loop over time that is a single operation of a compiled function, with a custom backward pass.

If the loop were unrolled, 64 steps of a recurrent network and their gradient would be ten thousand operations, which
take minutes to compile. With torch's scan operator, the size of the graph does not depend on the number of steps. The
forward pass stores the carry (recurrent state) before each step. The backward pass goes through the steps in reverse
order. For each one, it computes the step again from the stored carry, and multiplies the gradient by its Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from rlcore.compiled import fused_scan
from rlcore.compiled.loop_step import Flat, choose, go_back, precision_now, split, spread, trace_step
from rlcore.errors import CompilationError
from rlcore.functional.tree import leaves, map_leaves, rebuild

LoopBody = Callable[[Any, Any, Any], tuple[Any, Any]]
_tracing: list[bool | None] = [None]  # True in a trace on fake tensors, False in one on real tensors, None outside


class DataDependentScan(Exception):
    """Exception of `scan` in a trace on real tensors, which cannot contain a scan; the trace must use fake tensors."""


@contextmanager
def tracing(by_shapes: bool) -> Iterator[None]:
    """Context manager for tracing a function that may call `scan`.

    Args:
        by_shapes: True for a trace on fake tensors, which have shapes but no values: each scan becomes one operation.
            False for a trace on real tensors: a scan raises `DataDependentScan`.
    """
    before, _tracing[0] = _tracing[0], by_shapes
    try:
        yield
    finally:
        _tracing[0] = before


def refuse_sum_over_ranks() -> None:
    """Raise RuntimeError if a function is being traced, because compiled code cannot sum tensors over ranks.

    The function is then not compiled and runs as eager code.
    """
    if _tracing[0] is not None:
        raise RuntimeError("a sum over ranks cannot be compiled")


def scan(step: LoopBody, carry: Any, xs: Any, params: Any = ()) -> tuple[Any, Any]:
    """Execute a loop over time: carry, y[t] = step(carry, xs[t], params) for t = 0, 1, ..., T - 1.

    Eager code executes the loop in Python, and so does compiled code if T = 1. In machine code with T > 1, the loop is
    a single operation, whose size does not depend on T. In a CUDA graph, each step is compiled to a few fused kernels
    (`rlcore.compiled.fused_scan`). Gradients flow to the initial carry, xs and params.

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
    if _tracing[0] is False and length > 1:
        raise DataDependentScan
    loop = fused_scan.loop_now() if length > 1 else None
    if length > 1 and (_tracing[0] or loop is not None):
        return _trace(step, carry, xs, params, loop)
    found: list[Any] = []
    for t in range(length):
        carry, y = step(carry, map_leaves(lambda x, t=t: x[t], xs), params)
        found.append(leaves(y))
    return carry, rebuild(y, iter([torch.stack(column) for column in zip(*found, strict=True)]))


class _ArgumentCheck(TorchFunctionMode):
    """Context manager that raises if a step reads a tensor that requires a gradient and is not an argument.

    Without the error, the gradient with respect to this tensor would be missing.

    Args:
        tensors: arguments of the step.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {id(tensor): tensor for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Execute a torch function, after checking the tensors it reads; its results are then allowed as inputs."""
        for tensor in _tensors((args, kwargs or {})):
            if id(tensor) not in self._known and tensor.requires_grad:
                raise CompilationError(
                    f"a step of a scan reads a tensor of shape {[*tensor.shape]} that requires a gradient and is not "
                    "an argument of the step: pass it in scan's `params`, for a module as "
                    "dict(module.named_parameters()), and call the module with torch.func.functional_call"
                )
        found = func(*args, **(kwargs or {}))
        self._known |= {id(tensor): tensor for tensor in _tensors(found)}
        return found


def _tensors(record: Any) -> list[Tensor]:
    return [part for part in tree_leaves(record) if isinstance(part, Tensor)]


# Scan as one operation ------------------------------------------------------------------------------------------------


def _trace(step: LoopBody, carry: Any, xs: Any, params: Any, loop: fused_scan.FusedLoop | None) -> tuple[Any, Any]:
    groups = [leaves(carry), leaves(xs), leaves(params)]
    forms: list[Any] = [] if loop is None else loop.forms

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        left = iter(tensors)
        with _ArgumentCheck(tensors):
            after, y = step(*(rebuild(form, left) for form in (carry, xs, params)))
        forms[:] = [y]
        assert [c.shape for c in leaves(after)] == [c.shape for c in groups[0]], "a step must not change carry shapes"
        # Outputs must not share memory with inputs or with each other.
        kept = [c.to(old.dtype) for c, old in zip(leaves(after), groups[0], strict=True)]
        return tuple(t.clone(memory_format=torch.contiguous_format) for t in (*kept, *leaves(y)))

    sizes = [len(group) for group in groups]
    tensors = [tensor for group in groups for tensor in group]
    if loop is not None:
        outputs = fused_scan.go_through_time(loop, flat, sizes, tensors)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        outputs = _Scan.apply(flat, sizes, *tensors)[: -sizes[0]]
    else:
        outputs = _loop(flat, sizes, tensors)
    left = iter(outputs)
    return rebuild(carry, left), rebuild(forms[0], left)


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

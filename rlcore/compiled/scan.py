"""A loop over time that becomes one operation of a compiled function, with a backward of its own.

Unrolled, 64 steps of a recurrent network and their gradient are ten thousand operations, and a compiler takes minutes
for them. As a scan (torch's operator of that name) the graph does not grow with time: forward, it also gives the carry
before each step; backward, it goes through them in reverse, does each step again and multiplies by its Jacobian.
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
_tracing: list[bool | None] = [None]  # whether the trace that is being made goes by shapes; None: there is none


class DataDependentScan(Exception):
    """A scan in a trace that does not go by shapes alone."""


@contextmanager
def tracing(by_shapes: bool) -> Iterator[None]:
    """Within it a scan is one operation; in a trace with numbers, which cannot have it, a `DataDependentScan`."""
    before, _tracing[0] = _tracing[0], by_shapes
    try:
        yield
    finally:
        _tracing[0] = before


def refuse_sum_over_ranks() -> None:
    """Raise RuntimeError in a trace, because compiled code cannot exchange tensors with other ranks.

    The function that is traced then runs as it is written.
    """
    if _tracing[0] is not None:
        raise RuntimeError("it sums over ranks, which compiled code cannot do")


def scan(step: LoopBody, carry: Any, xs: Any, params: Any = ()) -> tuple[Any, Any]:
    """Go through time: carry, y[t] = step(carry, x[t], params) for t = 0, 1, ...

    As it is written it is that loop; of one step, always. Compiled, it is one operation of the function around it,
    whatever the number of steps; in a CUDA graph its steps are fused (`rlcore.compiled.fused_scan`). Gradients go to
    the first carry, xs and params.

    Args:
        step: of a carry, one row of xs and params; gives the next carry, of the same shapes and types, and y. It may
            read no other tensors: what it computes with is handed in. It may scan itself.
        carry: nested tensors before the first step.
        xs: nested tensors [T, ...], among them what resets the carry, as `is_first`.
        params: nested tensors that every step reads, as `dict(cell.named_parameters())` for `functional_call`.

    Returns:
        The carry after the last step, and the y of all steps, nested as one of them, [T, ...].

    Raises:
        CompilationError: In a compiled function, if the step reads a tensor with a gradient that was not handed in.
    """
    length = len(leaves(xs)[0])
    assert all(len(x) == length for x in leaves(xs)), "xs of several lengths"
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


class _Handed(TorchFunctionMode):
    """Refuse tensors with a gradient that a step reads without being given them: the gradient would be lost.

    Args:
        tensors: that the step is given.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {id(tensor): tensor for tensor in tensors}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and remember what it returns."""
        for tensor in _tensors((args, kwargs or {})):
            if id(tensor) not in self._known and tensor.requires_grad:
                raise CompilationError(
                    f"a step of a scan reads a tensor of shape {[*tensor.shape]} that has a gradient and is not handed "
                    "to it: pass it in scan's `params`, for a module as dict(module.named_parameters()), and call the "
                    "module by torch.func.functional_call"
                )
        found = func(*args, **(kwargs or {}))
        self._known |= {id(tensor): tensor for tensor in _tensors(found)}
        return found


def _tensors(record: Any) -> list[Tensor]:
    return [part for part in tree_leaves(record) if isinstance(part, Tensor)]


# As one operation -----------------------------------------------------------------------------------------------------


def _trace(step: LoopBody, carry: Any, xs: Any, params: Any, loop: fused_scan.FusedLoop | None) -> tuple[Any, Any]:
    groups = [leaves(carry), leaves(xs), leaves(params)]
    forms: list[Any] = [] if loop is None else loop.forms

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        left = iter(tensors)
        with _Handed(tensors):
            after, y = step(*(rebuild(form, left) for form in (carry, xs, params)))
        forms[:] = [y]
        assert [c.shape for c in leaves(after)] == [c.shape for c in groups[0]], "a step changes its carry's shapes"
        # What comes out may be neither what went in nor twice the same.
        kept = [c.to(old.dtype) for c, old in zip(leaves(after), groups[0], strict=True)]
        return tuple(t.clone(memory_format=torch.contiguous_format) for t in (*kept, *leaves(y)))

    sizes = [len(group) for group in groups]
    tensors = [tensor for group in groups for tensor in group]
    if loop is not None:
        made = fused_scan.go_through_time(loop, flat, sizes, tensors)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        made = _Scan.apply(flat, sizes, *tensors)[: -sizes[0]]
    else:
        made = _loop(flat, sizes, tensors)
    left = iter(made)
    return rebuild(carry, left), rebuild(forms[0], left)


def _loop(flat: Flat, sizes: Sequence[int], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The operation: carry after the last step, and the rest of what each gives, [T, ...]."""
    from torch._higher_order_ops.scan import scan_op  # with torch's compiler, which tracing loads

    carry, xs, params = split(tensors, sizes)
    graph = trace_step(flat, [*carry, *(x[0] for x in xs), *params])
    with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage] - the gradient is ours
        # No two of them may share memory, as parameters do that an optimizer keeps as parts of one tensor.
        carry, params = ([t.clone(memory_format=torch.contiguous_format) for t in of] for of in (carry, params))
        return tuple(scan_op(graph, carry, list(xs), tuple(params)))


class _Scan(torch.autograd.Function):
    """The loop; beside what it gives, the carry before each step, for the way back."""

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
    """The way back; a function of its own, so that transforms of torch.func meet no operator that they do not know."""

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
        made = _loop(back, [len(begin), len(through), len(params)], [*begin, *through, *params])
        of_carry, of_params, of_x = split(made, [count[0], count[2], count[1]])
        found = (of_carry, [t.flip(0) for t in of_x], of_params)
        return tuple(part for group, of in zip(found, wanted, strict=True) for part in spread(group, of))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing: of a gradient's gradient there is none."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("a scan has no second derivative")

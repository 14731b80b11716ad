"""Tracing of one step of a loop over time, and the gradient of one step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Flat = Callable[..., tuple[Tensor, ...]]  # function of tensors: carry, one row of xs, params -> next carry, y
Precision = tuple[str, torch.dtype, bool]


def trace_step(function: Flat, example: Sequence[Tensor]) -> Any:
    """Trace the function of one loop step to a graph; an outer trace that is in progress does not record it.

    Args:
        function: step, or step with its gradient, as a function of tensors.
        example: example inputs; only shapes and dtypes are used.

    Returns:
        The traced graph, a `torch.fx.GraphModule`.
    """
    # Imported here with torch's tracer, which is loaded when this function is called.
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    with disable_proxy_modes_tracing():
        return make_fx(function)(*(torch.zeros_like(tensor.detach()) for tensor in example))


def precision_now(device: str) -> Precision:
    """Return the current autocast settings (device, dtype, enabled), which are stored in the forward pass.

    The backward pass needs them to compute a step again, because it runs outside of the autocast context.
    """
    return device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)


def go_back(flat: Flat, sizes: Sequence[int], wanted: Sequence[Sequence[bool]], precision: Precision) -> Flat:
    """Return the backward function of one loop step, which computes the step again to differentiate it.

    Args:
        flat: the step as a function of tensors: carry, one row of each tensor in xs, params -> next carry, y.
        sizes: number of tensors in carry, in xs and in params.
        wanted: three lists, for carry, xs and params: for each tensor, True if its gradient is needed.
        precision: autocast settings of the forward pass, from `precision_now`.

    Returns:
        A function. Its inputs are the gradients with respect to the floating-point tensors of the next carry and y,
        followed by the inputs of the step. Its outputs are the needed gradients with respect to carry, xs and params.
    """
    device, dtype, enabled = precision

    def back(*given: Tensor) -> tuple[Tensor, ...]:
        gradients, now = split(given, [len(given) - sum(sizes), None])
        with torch.enable_grad(), torch.autocast(device, dtype, enabled, cache_enabled=False):
            inputs = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in now]
            outputs = [tensor for tensor in flat(*inputs) if tensor.is_floating_point()]
        pairs = [
            (tensor, gradient) for tensor, gradient in zip(outputs, gradients, strict=True) if tensor.requires_grad
        ]
        asked = [choose(group, of) for group, of in zip(split(inputs, sizes), wanted, strict=True)]
        results = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            [tensor for group in asked for tensor in group],
            [gradient for _, gradient in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in results)

    return back


def split(tensors: Sequence[Any], sizes: Sequence[int | None]) -> list[list[Any]]:
    """Split a list into consecutive groups; `sizes` has the length of each group, None means all remaining items."""
    left = iter(tensors)
    return [[*itertools.islice(left, size)] for size in sizes]


def choose(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return the tensors at the positions at which `wanted` is True."""
    return [tensor for tensor, there in zip(tensors, wanted, strict=True) if there]


def spread(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return a list as long as `wanted`: at each True the next of `tensors`, at each False None."""
    left = iter(tensors)
    return [next(left) if there else None for there in wanted]

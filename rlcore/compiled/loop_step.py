"""One step of a loop over time, separate from the loop: as a traced graph, and with its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Flat = Callable[..., tuple[Tensor, ...]]  # function of tensors: carry, one row of xs, params -> next carry, y
Precision = tuple[str, torch.dtype, bool]


def trace_step(function: Flat, example: Sequence[Tensor]) -> Any:
    """Trace the operations of one step and its gradient, separately from an enclosing trace."""
    # Imported here with torch's tracer, which is loaded when this function is called.
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    with disable_proxy_modes_tracing():
        return make_fx(function)(*(torch.zeros_like(tensor.detach()) for tensor in example))


def precision_now(device: str) -> Precision:
    """Return device, dtype and state of autocast in the loss; the gradient is computed outside of that context."""
    return device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)


def go_back(flat: Flat, sizes: Sequence[int], wanted: Sequence[Sequence[bool]], precision: Precision) -> Flat:
    """Return a function that computes a step again, with its gradient.

    Args:
        flat: the step.
        sizes: number of tensors in carry, xs and params.
        wanted: for each tensor of these three groups, True if its gradient is needed.
        precision: autocast settings of the loss.

    Returns:
        A function of the gradients of the next carry and y (without integer tensors), followed by the inputs of the
        step. It returns the gradients that are needed.
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
    """Split tensors into consecutive groups of these sizes; None stands for all remaining ones."""
    left = iter(tensors)
    return [[*itertools.islice(left, size)] for size in sizes]


def choose(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return the tensors that are wanted."""
    return [tensor for tensor, there in zip(tensors, wanted, strict=True) if there]


def spread(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return the tensors at the wanted positions, and None at the others."""
    left = iter(tensors)
    return [next(left) if there else None for there in wanted]

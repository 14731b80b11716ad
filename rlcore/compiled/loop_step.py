"""One step of a loop over time, apart from the loop: as operations, and done again with its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Flat = Callable[..., tuple[Tensor, ...]]  # of tensors alone: carry, one row of xs, params; gives the next carry and y
Precision = tuple[str, torch.dtype, bool]


def trace_step(function: Flat, example: Sequence[Tensor]) -> Any:
    """The operations of one step, its gradient among them, apart from a trace that goes on around it."""
    # With torch's tracer, which whoever traces has loaded.
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    with disable_proxy_modes_tracing():
        return make_fx(function)(*(torch.zeros_like(tensor.detach()) for tensor in example))


def precision_now(device: str) -> Precision:
    """Device, type and switch of the autocast that is on; a gradient is asked for outside of its loss, where it is."""
    return device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)


def go_back(flat: Flat, sizes: Sequence[int], wanted: Sequence[Sequence[bool]], precision: Precision) -> Flat:
    """A step done again, with its gradient.

    Args:
        flat: the step.
        sizes: how many tensors carry, xs and params are.
        wanted: whose gradient is, of each of these.
        precision: of the loss.

    Returns:
        A function of the gradients of the next carry and y, their parts in whole numbers left out, and of what the
        step was given; it gives the gradients that are wanted.
    """
    device, dtype, enabled = precision

    def back(*given: Tensor) -> tuple[Tensor, ...]:
        gradients, now = split(given, [len(given) - sum(sizes), None])
        with torch.enable_grad(), torch.autocast(device, dtype, enabled, cache_enabled=False):
            inputs = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in now]
            made = [tensor for tensor in flat(*inputs) if tensor.is_floating_point()]
        pairs = [(tensor, gradient) for tensor, gradient in zip(made, gradients, strict=True) if tensor.requires_grad]
        asked = [choose(group, of) for group, of in zip(split(inputs, sizes), wanted, strict=True)]
        found = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            [tensor for group in asked for tensor in group],
            [gradient for _, gradient in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in found)

    return back


def split(tensors: Sequence[Any], sizes: Sequence[int | None]) -> list[list[Any]]:
    """Groups of so many, one after the other; None: of all that are left."""
    left = iter(tensors)
    return [[*itertools.islice(left, size)] for size in sizes]


def choose(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Leave out what is not wanted."""
    return [tensor for tensor, there in zip(tensors, wanted, strict=True) if there]


def spread(tensors: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """Tensors in the places that are wanted, None in the others."""
    left = iter(tensors)
    return [next(left) if there else None for there in wanted]

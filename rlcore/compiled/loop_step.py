"""One step of a loop over time as a function of tensors, its trace and its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from rlcore.errors import CompilationError
from rlcore.functional.scan import LoopBody
from rlcore.functional.tree import leaves, rebuild

Flat = Callable[..., tuple[Tensor, ...]]  # function of tensors: carry, one row of xs, params -> next carry, y
Precision = tuple[str, torch.dtype, bool]
# Function that executes a loop: (step, number of tensors in carry, xs and params, these tensors) -> the tensors of the
# carry after the last step, followed by the tensors of y for all steps, [T, ...].
FlatLoop = Callable[[Flat, Sequence[int], Sequence[Tensor]], Sequence[Tensor]]


def by_tensors(loop: FlatLoop, forms: list[Any], step: LoopBody, carry: Any, xs: Any, params: Any) -> tuple[Any, Any]:
    """Execute a loop over nested tensors by a function of lists of tensors.

    Args:
        loop: function that executes the loop.
        forms: list that receives one example of a step's output y, for its nested structure, if `loop` traces the step.
        step: function of the carry, one row of xs, and params.
        carry: initial carry (recurrent state), nested tensors.
        xs: inputs of the steps, nested tensors [T, ...].
        params: nested tensors that every step reads.

    Returns:
        The results of `rlcore.functional.scan.scan`.

    Raises:
        CompilationError: if the step reads a tensor that requires a gradient and is not one of its arguments.
    """
    groups = [leaves(carry), leaves(xs), leaves(params)]

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        left = iter(tensors)
        with _ArgumentCheck(tensors):
            after, y = step(*(rebuild(form, left) for form in (carry, xs, params)))
        forms[:] = [y]
        assert [c.shape for c in leaves(after)] == [c.shape for c in groups[0]], "a step must not change carry shapes"
        # Outputs must not share memory with inputs or with each other.
        kept = [c.to(old.dtype) for c, old in zip(leaves(after), groups[0], strict=True)]
        return tuple(t.clone(memory_format=torch.contiguous_format) for t in (*kept, *leaves(y)))

    left = iter(loop(flat, [len(group) for group in groups], [tensor for group in groups for tensor in group]))
    return rebuild(carry, left), rebuild(forms[0], left)


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

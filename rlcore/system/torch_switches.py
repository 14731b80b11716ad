"""Protection of torch's global settings (switches), such as the default dtype, from changes by environments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Switches = tuple["torch.dtype", "torch.device", int, int, bool, str, bool]
SETTERS = (  # function of torch that sets each switch
    "set_default_dtype",
    "set_default_device",
    "set_num_threads",
    "set_deterministic_debug_mode",
    "set_grad_enabled",
    "set_float32_matmul_precision",
    "set_flush_denormal",
)
TINY = 3e-308  # half of it is denormal, and therefore 0 if the CPU flushes denormal numbers


def read_switches() -> Switches:
    """Return the values of all global settings of torch that affect the results of computations; takes 2 µs."""
    import torch

    tensor = torch.empty(0)  # faster than torch.get_default_device(), which takes 4 µs
    return (
        tensor.dtype,
        tensor.device,
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
        not TINY * 0.5,
    )


def set_switches_back(before: Switches) -> list[str]:
    """Restore all global settings of torch that have changed.

    Args:
        before: earlier result of `read_switches`.

    Returns:
        The calls that would repeat the changes, such as "torch.set_num_threads(1)".
    """
    import torch

    changes = list[str]()
    for setter, old, new in zip(SETTERS, before, read_switches(), strict=True):
        if old != new:
            changes.append(f"torch.{setter}({new})")
            # torch is faster without a default device than with an explicit default of the CPU.
            getattr(torch, setter)(None if old == torch.device("cpu") else old)
    return changes


@contextmanager
def keeping_switches() -> Iterator[None]:
    """Context manager that restores torch's global settings at its end; environments may change them inside it."""
    before = read_switches()
    try:
        yield
    finally:
        set_switches_back(before)

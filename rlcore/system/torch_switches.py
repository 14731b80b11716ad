"""Global switches of torch in this process, which an environment that runs in it could change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Switches = tuple["torch.dtype", "torch.device", int, int, bool, str, bool]
SETTERS = (  # of each switch the function of torch that sets it
    "set_default_dtype",
    "set_default_device",
    "set_num_threads",
    "set_deterministic_debug_mode",
    "set_grad_enabled",
    "set_float32_matmul_precision",
    "set_flush_denormal",
)
TINY = 3e-308  # half of it is denormal: 0 if the processor flushes such numbers


def read_switches() -> Switches:
    """Return the value of every switch that changes what is computed; takes two microseconds."""
    import torch

    made = torch.empty(0)  # asked for its default device, torch takes 4 µs
    return (
        made.dtype,
        made.device,
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
        not TINY * 0.5,
    )


def set_switches_back(before: Switches) -> list[str]:
    """Set every switch that has changed to the value it had; return the changes in words."""
    import torch

    changes = list[str]()
    for setter, old, new in zip(SETTERS, before, read_switches(), strict=True):
        if old != new:
            changes.append(f"torch.{setter}({new})")
            # Without a default device torch is quicker than with that of the processor.
            getattr(torch, setter)(None if old == torch.device("cpu") else old)
    return changes


@contextmanager
def keeping_switches() -> Iterator[None]:
    """Set the switches back after the `with`, whatever an environment did to them."""
    before = read_switches()
    try:
        yield
    finally:
        set_switches_back(before)

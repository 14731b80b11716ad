"""CPU cores and GPUs of this machine."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def cores() -> int:
    """Return the number of CPU cores that this process may use, or of all cores if the system does not report that."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    """Return the number of CUDA devices that torch detects."""
    import torch

    return torch.cuda.device_count()


def gpu_name(device: torch.device) -> str:
    """Return the model name of a CUDA device."""
    import torch

    return torch.cuda.get_device_name(device)


@functools.cache
def processor() -> dict[str, str]:
    """Return the model and instruction sets of the CPU, on which compiled code depends.

    The keys are those of /proc/cpuinfo, such as "model name" and "flags".
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {"model name": platform.processor() or platform.machine()}
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    first = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return {name: first[name] for name in wanted if name in first}

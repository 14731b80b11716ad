"""How many processor cores this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Those that it is bound to, where the system tells; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Process trees as the kernel shows them, and killing all of one at the same moment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold spaces.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for known in found:
        found.extend(children.get(known, ()))
    return found


def kill_tree(pid: int) -> list[int]:
    """SIGKILL a process and everything below it; frozen first, so that none sees another die. Returns the pids."""
    frozen: list[int] = []
    while set(now := descendants(pid)) - set(frozen):  # until none was born meanwhile
        for member in now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGSTOP)
        frozen = now
    for member in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    return frozen


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    """Those that are still alive (zombies are not) after so many seconds."""
    deadline = time.monotonic() + seconds
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

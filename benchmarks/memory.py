"""The largest memory that a process has taken together with all that it started."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

EVERY, SELDOM = 0.1, 0.005  # seconds between two looks: so many, or of what is older than 20 s this part of its age


class PeakMemory(threading.Thread):
    """Looks at a process and its descendants until it is told to stop.

    Counted is the proportional set: what several processes share, a fork its parent's pages say, counts once. The
    largest process alone, as `wait4` tells it, is less than a fifth of a build with its compilers.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.megabytes = 0.0
        self._pid, self._over = pid, threading.Event()
        self.start()

    def run(self) -> None:
        """Look again and again: a look at a tree of processes costs 8 ms."""
        begin = time.monotonic()
        while not self._over.is_set():
            self.megabytes = max(self.megabytes, tree_megabytes(self._pid))
            self._over.wait(max(EVERY, SELDOM * (time.monotonic() - begin)))

    def stop(self) -> float:
        """The largest of all looks, in MB."""
        self._over.set()
        self.join()
        return self.megabytes


def tree_megabytes(pid: int) -> float:
    """The memory of a process and all its descendants now."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += _megabytes(process.pid)
    return total


def _megabytes(pid: int) -> float:
    """The proportional set of one process; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0

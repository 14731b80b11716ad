"""Peak memory of a process and its descendants."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

# Seconds between two samples, and the interval as a fraction of the elapsed time if that is longer (after 20 s).
EVERY, SELDOM = 0.1, 0.005


class PeakMemory(threading.Thread):
    """Thread that samples the memory of a process and its descendants until `stop` is called.

    The proportional set size is measured. It counts a page once if several processes share it, for example a forked
    process and its parent. `os.wait4` cannot be used, because it reports only the memory of the largest process. When
    compilers run, that is less than a fifth of the total.

    Args:
        pid: process id of the root.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.megabytes = 0.0
        self._pid, self._over = pid, threading.Event()
        self.start()

    def run(self) -> None:
        """Sample the memory until `stop` is called; one sample of all processes takes 8 ms."""
        begin = time.monotonic()
        while not self._over.is_set():
            self.megabytes = max(self.megabytes, tree_megabytes(self._pid))
            self._over.wait(max(EVERY, SELDOM * (time.monotonic() - begin)))

    def stop(self) -> float:
        """Stop sampling and return the peak, in MB."""
        self._over.set()
        self.join()
        return self.megabytes


def tree_megabytes(pid: int) -> float:
    """Return the current memory of a process and all its descendants, in MB."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += _megabytes(process.pid)
    return total


def _megabytes(pid: int) -> float:
    """Return the proportional set size of one process in MB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0

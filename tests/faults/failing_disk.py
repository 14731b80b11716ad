"""Simulated disk faults (failing_disk.c): compile the library, preload it into processes, and arm a fault."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("failing_disk.c")
FAIL, SHORT, KILL = range(3)


class Fault(NamedTuple):
    mode: int
    errno: int = 0
    sticky: bool = False


FAULTS = {
    "ENOSPC": Fault(FAIL, errno.ENOSPC),
    "ENOSPC from then on": Fault(FAIL, errno.ENOSPC, True),
    "half a write, then ENOSPC": Fault(SHORT, errno.ENOSPC, True),
    "EIO": Fault(FAIL, errno.EIO),
    "EROFS from then on": Fault(FAIL, errno.EROFS, True),
    "SIGKILL": Fault(KILL),
}


def compiled(folder: Path) -> Path:
    """Compile the library for LD_PRELOAD and return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests of a failing disk need a C compiler, as torch.compile does"
    library = folder / "failing_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def environment(library: Path, folder: Path | None = None, at: int = 0, fault: Fault | None = None) -> dict[str, str]:
    """Environment variables of a process with the library; with a folder and a fault it is armed from the start."""
    variables = {"LD_PRELOAD": str(library)}
    if folder is not None and fault is not None:
        variables["FAILING_DISK"] = f"{os.path.realpath(folder)}:{at}:{fault.mode}:{fault.errno}:{int(fault.sticky)}"
    return variables


class Disk:
    """Controls the faults of this process, in which the library is preloaded."""

    @functools.cached_property
    def _library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(None)
        library.disk_count.restype = ctypes.c_long
        return library

    def arm(self, folder: Path, at: int, fault: Fault) -> None:
        path = os.path.realpath(folder).encode()
        self._library.disk_arm(path, ctypes.c_long(at), fault.mode, fault.errno, int(fault.sticky))

    def disarm(self) -> int:
        """Disable the fault; return the number of counted operations."""
        self._library.disk_disarm()
        return self._library.disk_count()

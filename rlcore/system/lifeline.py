"""Child processes that end when their parent ends in any way. The import of this module loads no large library.

    python -m rlcore.system.lifeline DESCRIPTOR MODULE [ARGUMENT ...]      as python -m MODULE, with a lifeline

The parent keeps one end of a pipe open and never writes to it. When the parent ends, even by SIGKILL, the kernel closes
that end and sends SIGIO to the child. The default action of SIGIO ends a process without Python's cooperation, so an
engine that hangs in a step with the interpreter lock ends too. A parent that is only stopped (SIGSTOP) keeps its end
open. Unlike PR_SET_PDEATHSIG, the lifeline depends on the process, not on the thread that started the child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any


def spawn(module: str, *arguments: str, pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE ARGUMENT ...` as a child that ends with this process.

    The child has the same import path as this process. Files in its working directory cannot shadow modules.

    Args:
        module: module with a `__main__` part.
        *arguments: arguments of the module.
        pass_fds: descriptors that the child inherits.
        **options: options of subprocess.Popen; `env` replaces the environment of this process.

    Returns:
        The child. It also ends when there is no more reference to this object.
    """
    lifeline, ours = os.pipe()
    options["env"] = {**options.get("env", os.environ), "PYTHONPATH": import_path()}
    command = [sys.executable, "-P", "-m", "rlcore.system.lifeline", str(lifeline), module, *arguments]
    try:
        child = subprocess.Popen[bytes](command, pass_fds=(lifeline, *pass_fds), **options)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(lifeline)
    _children.add(child)
    # Not at exit: other code may wait for the child until this process ends.
    weakref.finalize(child, os.close, ours).atexit = False
    return child


def children_seconds() -> float:
    """Return the CPU seconds of all children that this process has waited for, and of running children of `spawn`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for child in list(_children):
        with contextlib.suppress(OSError), open(f"/proc/{child.pid}/stat", "rb") as file:  # OSError: already waited for
            # Fields after the name in parentheses: utime and stime, and those of its own children that have ended.
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


_children: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def import_path() -> str:
    """Return the PYTHONPATH that gives a child (`python -P`) the same import path as this process."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def die_with_parent(lifeline: int) -> None:
    """End this process when the other end of a pipe closes.

    Args:
        lifeline: read end of a pipe that the parent keeps open and never writes to.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # the parent ended before the signal was set up
        os._exit(1)


def is_stopped(pid: int) -> bool:
    """Return True if a process is paused (by SIGSTOP or a debugger), so that missing progress is not an error."""
    return _status(pid) in ("stopped", "tracing-stop")


def alive(pid: int) -> bool:
    """Return True if a process runs or is paused; False for a zombie, which has ended but was not waited for."""
    return _status(pid) not in ("", "zombie", "dead")


def _status(pid: int) -> str:
    """Return psutil's name of a process state; empty if the process does not exist."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status()
    return ""


def main() -> None:
    """Run a module in a child with a lifeline."""
    die_with_parent(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Lifeline: a pipe that ends a child process as soon as its parent has ended, for whatever reason.

    python -m rlcore.system.lifeline DESCRIPTOR MODULE [ARGUMENT ...]      as python -m MODULE, with a lifeline

The parent keeps the write end of the pipe open and never writes to it. When the parent ends, even by SIGKILL, the
kernel closes this end and sends SIGIO to the child. SIGIO ends the child without executing Python code, so that it also
ends a child that hangs in C code, such as a game engine. If the parent is only paused (SIGSTOP), the pipe stays open.

Linux has the alternative PR_SET_PDEATHSIG, but that ends the child when the thread that started it ends. This module
imports no large library.
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
    """Start `python -m MODULE ARGUMENT ...` as a child process that ends when this process ends.

    The child has the import path of this process. Files in its working directory cannot shadow modules.

    Args:
        module: name of the module to run.
        *arguments: command-line arguments of the module.
        pass_fds: file descriptors that the child inherits.
        **options: arguments of subprocess.Popen, such as `env`, the environment variables of the child (by default
            those of this process).

    Returns:
        The child. It also ends when this object is deleted.
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
    """Return the CPU time in seconds of all ended children of this process and of running children from `spawn`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for child in list(_children):
        with contextlib.suppress(OSError), open(f"/proc/{child.pid}/stat", "rb") as file:  # OSError: already waited for
            # Fields after the name in parentheses: utime and stime, and those of its own children that have ended.
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


_children: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def import_path() -> str:
    """Return a value of PYTHONPATH that gives a child process (`python -P`) the import path of this process."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def die_with_parent(lifeline: int) -> None:
    """Set up this process so that it ends when the write end of a pipe is closed, because the parent has ended.

    Args:
        lifeline: read end of a pipe that the parent keeps open and never writes to.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # the parent ended before the signal was set up
        os._exit(1)


def is_stopped(pid: int) -> bool:
    """Return True if a process is paused by SIGSTOP or a debugger, which explains why it makes no progress."""
    return _status(pid) in ("stopped", "tracing-stop")


def alive(pid: int) -> bool:
    """Return True if a process exists and has not ended; a zombie, for which its parent has not waited, has ended."""
    return _status(pid) not in ("", "zombie", "dead")


def _status(pid: int) -> str:
    """Return the state of a process as psutil names it, such as "running"; "" if the process does not exist."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status()
    return ""


def main() -> None:
    """Run the module that the command line names, with the lifeline that it names (entry point of the child)."""
    die_with_parent(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

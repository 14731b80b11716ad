"""Children that end when their parent does, however it ends. Imports nothing heavy.

    python -m rlcore.system.lifeline DESCRIPTOR MODULE [ARGUMENT ...]      as python -m MODULE, with a lifeline

The parent holds one end of a pipe that nobody writes to. When the parent has ended in any way, a SIGKILL included, the
kernel closes that end and sends the child SIGIO, whose default ends a process without asking Python: an engine that
hangs while it holds the interpreter lock ends too, in the middle of a step. A parent that is only stopped (SIGSTOP)
keeps its end open. Unlike PR_SET_PDEATHSIG this follows the process, not the thread that started the child.
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
    """Start `python -m MODULE ARGUMENT ...` as a child that does not outlive this process.

    It finds modules where this process does, and nowhere else: a file beside the user shadows nothing.

    Args:
        module: with a `__main__` part.
        *arguments: for it.
        pass_fds: descriptors that it inherits.
        **options: of subprocess.Popen; `env` replaces this process's own environment.

    Returns:
        The child. It also ends when the last reference to this object is gone.
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
    # Not at exit: until the very end of this process somebody may still be waiting for the child.
    weakref.finalize(child, os.close, ours).atexit = False
    return child


def children_seconds() -> float:
    """Return processor seconds of children: of all that this process has waited for, and those of `spawn` that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for child in list(_children):
        with contextlib.suppress(OSError), open(f"/proc/{child.pid}/stat", "rb") as file:  # it has been waited for
            # After the name in parentheses; utime, stime, and those of its own children that have ended.
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


_children: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def import_path() -> str:
    """PYTHONPATH of a child that is to find modules where this process does, and nowhere else (with `python -P`)."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def die_with_parent(lifeline: int) -> None:
    """End this process when the other end of a pipe closes.

    Args:
        lifeline: read end of a pipe that the parent holds open and never writes to.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was gone before we asked to be told
        os._exit(1)


def is_stopped(pid: int) -> bool:
    """Tell whether a process is paused (SIGSTOP, a debugger): what it does not do now is not its fault."""
    return _status(pid) in ("stopped", "tracing-stop")


def alive(pid: int) -> bool:
    """Tell whether a process runs or is paused; one that has ended and was not waited for (a zombie) does not."""
    return _status(pid) not in ("", "zombie", "dead")


def _status(pid: int) -> str:
    """State of a process in psutil's words; empty when it has ended."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status()
    return ""


def main() -> None:
    """Entry point of a child."""
    die_with_parent(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

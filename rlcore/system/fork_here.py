"""Child processes that are forked from this process, so that libraries are imported only once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rlcore.system.forked import Forked
from rlcore.system.lifeline import die_with_parent

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fork_here(name: str, run: Callable[[], None], *, keep: Sequence[int], stderr: int) -> Forked | None:
    """Run a function in a forked child process, which ends when this process ends.

    The child has its own session and ignores the signals SIGINT, SIGTERM and SIGHUP.

    Args:
        name: name of the child in process lists, at most 15 characters. (Its command line is that of this process.)
        run: function to call in the child. The child then exits with code 0, or with code 1 after an exception.
        keep: file descriptors that stay open in the child, in addition to stdin, stdout and stderr. All other
            descriptors are closed in the child, including those of locks.
        stderr: file descriptor to use as stderr of the child; stdin and stdout are pipes.

    Returns:
        The child. None if this process has other threads: the child could then wait forever for a lock that another
        thread held at the time of the fork.
    """
    if threading.active_count() > 1:
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise the child would write the buffered text again
    lifeline, stdin, stdout = os.pipe(), os.pipe(), os.pipe()
    theirs, ours = (lifeline[0], stdin[0], stdout[1]), (lifeline[1], stdin[1], stdout[0])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        pid = os.fork()
        if pid == 0:
            _become(name, run, (*theirs, stderr), keep)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in theirs:
            os.close(descriptor)
    return Forked(pid, os.pidfd_open(pid), None, ours[0], (open(ours[1], "wb"), open(ours[2], "rb")))


def _become(name: str, run: Callable[[], None], descriptors: Sequence[int], keep: Sequence[int]) -> NoReturn:
    """In the child, replace signal handlers, standard streams and descriptors of the parent; then run and exit."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        lifeline, *standard = descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False)  # noqa: SIM115 - open until the process ends
            for number, mode in enumerate(("r", "w", "w"))
        )
        for descriptor in [*map(int, os.listdir("/proc/self/fd"))]:
            if descriptor > 2 and descriptor not in (lifeline, *keep):
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        die_with_parent(lifeline)
        Path("/proc/self/comm").write_text(name)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Children forked from this process, which has imported what they want: neither its processor time nor memory twice."""

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
    """Run a function in a child of this process, in a session of its own; the child ends when this process does.

    Args:
        name: of the child in lists of processes, 15 characters at most; its command line is that of this process.
        run: called in the child, which ends with code 0 after it and with 1 after an exception; finds three signals
            ignored: SIGINT, SIGTERM, SIGHUP.
        keep: descriptors that the child has beside its standard ones; all others are closed in it, locks among them.
        stderr: descriptor.

    Returns:
        The child; None where this process has other threads, whose locks a fork would find held for ever.
    """
    if threading.active_count() > 1:
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the child holds it too
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
    """In the child: leave everything behind that is the parent's, then run."""
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
            open(number, mode, closefd=False)  # noqa: SIM115 - as long as the process
            for number, mode in enumerate(("r", "w", "w"))
        )
        for descriptor in [*map(int, os.listdir("/proc/self/fd"))]:
            if descriptor > 2 and descriptor not in (lifeline, *keep):
                with contextlib.suppress(OSError):  # the listing's own
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

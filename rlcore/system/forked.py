"""Forked child processes: their handle, and children that are forked from this process.

Libraries that this process has imported need not be imported again. `rlcore.system.fork_server` forks children from
another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rlcore.system.lifeline import die_with_parent

UNKNOWN = 255  # exit code of a child if the fork server that forked it ended first
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Forked:
    """Forked child process, with those methods and attributes of subprocess.Popen that its users need.

    The child is ended when this object is deleted. `stdin` and `stdout` are pipes. `returncode` is None while the child
    runs, and negative if a signal ended it.

    Args:
        pid: process id of the child.
        pidfd: file descriptor that refers to the child and becomes readable when it ends.
        pipes: write ends of the lifeline (the child ends when it is closed) and of stdin, and read end of stdout.
        connection: connection to the fork server that forked the child and will report its exit code; None if this
            process forked the child.
    """

    def __init__(self, pid: int, pidfd: int, pipes: Sequence[int], connection: socket.socket | None = None) -> None:
        self.pid = pid
        lifeline, stdin, stdout = pipes
        self.stdin, self.stdout = open(stdin, "wb"), open(stdout, "rb")  # noqa: SIM115 - closed by the users
        self._pidfd = pidfd
        self._watched: socket.socket | int = pidfd if connection is None else connection
        self._lock = threading.Lock()
        self.returncode: int | None = None
        for descriptor in (lifeline, pidfd):
            # Not at exit: other code may wait for the child until this process ends.
            weakref.finalize(self, os.close, descriptor).atexit = False
        if connection is not None:  # not closed earlier, because another thread may wait for it
            weakref.finalize(self, connection.close).atexit = False

    def poll(self) -> int | None:
        """Return the exit code of the child, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the child has ended and return its exit code; 255 if the server ended before the child.

        Raises subprocess.TimeoutExpired if this takes more than `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            watched = self._watched
            if not select.select([watched], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            with self._lock:  # not locked while it waits, because another thread may have a shorter timeout
                if self.returncode is None and watched is self._watched:
                    self.returncode = self._read_code()
        return self.returncode

    def _read_code(self) -> int | None:
        """Return the exit code of the child; None if its server has ended, so that only the pidfd shows its end."""
        if not isinstance(self._watched, int):
            code = b""
            with contextlib.suppress(ConnectionError):
                code = self._watched.recv(16)
            self._watched = self._pidfd
            return int(code) if code else None
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # it is a child of the server
            return UNKNOWN

    def send_signal(self, number: int) -> None:
        """Send a signal to the child, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Send SIGTERM to the child, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the child, unless it has ended."""
        self.send_signal(signal.SIGKILL)


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
    theirs, ours = open_pipes()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        pid = os.fork()
        if pid == 0:
            _run_here(name, run, [*theirs, stderr], keep)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in theirs:
            os.close(descriptor)
    return Forked(pid, os.pidfd_open(pid), ours)


def _run_here(name: str, run: Callable[[], None], descriptors: Sequence[int], keep: Sequence[int]) -> NoReturn:
    """In the child of `fork_here`, replace the parent's signal handlers and descriptors; then run and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        start_session(descriptors)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False)  # noqa: SIM115 - open until the process ends
            for number, mode in enumerate(("r", "w", "w"))
        )
        for descriptor in [*map(int, os.listdir("/proc/self/fd"))]:
            if descriptor > 2 and descriptor not in (descriptors[0], *keep):
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        Path("/proc/self/comm").write_text(name)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_pipes() -> tuple[list[int], list[int]]:
    """Open a lifeline and pipes for stdin and stdout; return the descriptors of the child and those of the parent."""
    lifeline, stdin, stdout = os.pipe(), os.pipe(), os.pipe()
    return [lifeline[0], stdin[0], stdout[1]], [lifeline[1], stdin[1], stdout[0]]


def start_session(descriptors: Sequence[int]) -> None:
    """In a forked child, start a new session with the given lifeline, stdin, stdout and stderr."""
    lifeline, *standard = descriptors
    os.setsid()
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        if descriptor > 2:
            os.close(descriptor)
    die_with_parent(lifeline)

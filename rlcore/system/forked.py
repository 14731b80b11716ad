"""Children forked from one process that has imported what takes seconds: this end of it. The other is `fork_server`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rlcore.system.lifeline import import_path, spawn

PATIENCE = 60.0  # seconds for an answer; a server that has just started imports first
HEADER = struct.Struct("!I")  # bytes of the request that follows
UNKNOWN = 255  # exit code of a child whose server ended before it


class Forked:
    """A forked child, with what users of subprocess.Popen use of it; it ends when nothing refers to this object.

    `stdin` and `stdout` are pipes. `returncode` is negative where a signal ended it. Without a `connection` to the
    server that tells it, the child is one of this process.
    """

    def __init__(
        self, pid: int, pidfd: int, connection: socket.socket | None, lifeline: int, pipes: Sequence[IO[bytes]]
    ) -> None:
        self.pid = pid
        self.stdin, self.stdout = pipes
        self._pidfd = pidfd
        self._watched: socket.socket | int = pidfd if connection is None else connection
        self._lock = threading.Lock()
        self.returncode: int | None = None
        for descriptor in (lifeline, pidfd):
            # Not at exit: until the very end of this process somebody may still be waiting for the child.
            weakref.finalize(self, os.close, descriptor).atexit = False
        if connection is not None:  # not before: another thread may wait at it
            weakref.finalize(self, connection.close).atexit = False

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once it has ended; `subprocess.TimeoutExpired` where that takes longer (seconds)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            watched = self._watched
            if not select.select([watched], [], [], left)[0]:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
            with self._lock:  # not while it waits: another thread may have less patience
                if self.returncode is None and watched is self._watched:
                    self.returncode = self._reap() if isinstance(watched, int) else self._read_code(watched)
        return self.returncode

    def _read_code(self, server: socket.socket) -> int | None:
        """The code that the server tells; None where it has ended, and whoever waits sees by the pidfd."""
        code = b""
        with contextlib.suppress(ConnectionError):
            code = server.recv(16)
        self._watched = self._pidfd
        return int(code) if code else None

    def _reap(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # it was the server's
            return UNKNOWN

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start_server(listening: socket.socket, *modules: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process that forks children with these modules, when asked on this socket; it ends with this one."""
    return spawn(
        "rlcore.system.fork_server",
        str(listening.fileno()),
        *modules,
        pass_fds=(listening.fileno(),),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )


def fork(address: Path, module: str, *arguments: str, env: Mapping[str, str], stderr: int) -> Forked | None:
    """Ask a server for a child: `python -m MODULE ARGUMENT ...` with pipes for stdin and stdout.

    Args:
        address: of the server's socket.
        module: one of those that it was started with.
        *arguments: for it.
        env: its environment.
        stderr: descriptor.

    Returns:
        The child; None where no server answers or it declines: a fresh process will do.
    """
    request = {"module": module, "arguments": arguments, "env": dict(env), "cwd": os.getcwd(), "path": import_path()}
    body = json.dumps(request).encode()
    lifeline, stdin, stdout = os.pipe(), os.pipe(), os.pipe()
    theirs, ours = (lifeline[0], stdin[0], stdout[1]), (lifeline[1], stdin[1], stdout[0])
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(str(address))
        socket.send_fds(connection, [HEADER.pack(len(body))], [*theirs, stderr])
        connection.sendall(body)
        pid, (pidfd, *_), _, _ = socket.recv_fds(connection, 16, 1, socket.MSG_CMSG_CLOEXEC)
        connection.setblocking(True)
    except (OSError, ValueError):  # ValueError: no descriptor came with the answer
        connection.close()
        for descriptor in ours:
            os.close(descriptor)
        return None
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Forked(int(pid), pidfd, connection, ours[0], (open(ours[1], "wb"), open(ours[2], "rb")))

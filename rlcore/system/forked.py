"""Client of the fork server (`rlcore.system.fork_server`), and the class for the child processes that it forks."""

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

PATIENCE = 60.0  # seconds to wait for a reply; a server that has just started imports first
HEADER = struct.Struct("!I")  # size in bytes of the request that follows
UNKNOWN = 255  # exit code of a child if its server ended first


class Forked:
    """Forked child process, with those methods and attributes of subprocess.Popen that its users need.

    The child is ended when this object is deleted. `stdin` and `stdout` are pipes. `returncode` is None while the child
    runs, and negative if a signal ended it.

    Args:
        pid: process id of the child.
        pidfd: file descriptor that refers to the child and becomes readable when it ends.
        connection: connection to the fork server that forked the child and will report its exit code; None if this
            process forked the child.
        lifeline: write end of a pipe; the child ends when it is closed.
        pipes: stdin and stdout of the child.
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
                    self.returncode = self._reap() if isinstance(watched, int) else self._read_code(watched)
        return self.returncode

    def _read_code(self, server: socket.socket) -> int | None:
        """Receive the exit code from the server; None if the server has ended.

        After that, `wait` uses the pidfd to detect the end of the child.
        """
        code = b""
        with contextlib.suppress(ConnectionError):
            code = server.recv(16)
        self._watched = self._pidfd
        return int(code) if code else None

    def _reap(self) -> int:
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


def start_server(listening: socket.socket, *modules: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a fork server, which ends when this process ends.

    Args:
        listening: socket on which the server accepts requests.
        *modules: names of the modules that children can run; the server imports them.
        env: environment variables of the server.

    Returns:
        The process of the server.
    """
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
    """Start `python -m MODULE ARGUMENT ...` as a fork of a fork server, with pipes for stdin and stdout.

    Args:
        address: path of the server's socket.
        module: name of a module; it must be one of the modules that the server imported at its start.
        *arguments: command-line arguments of the module.
        env: environment variables of the child.
        stderr: file descriptor to use as stderr of the child.

    Returns:
        The child. None if no server answers within 60 s, or if the server declines the request because a fork would not
        be equivalent to a new process. The caller can then start a new process.
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
    except (OSError, ValueError):  # ValueError: the reply has no descriptor
        connection.close()
        for descriptor in ours:
            os.close(descriptor)
        return None
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Forked(int(pid), pidfd, connection, ours[0], (open(ours[1], "wb"), open(ours[2], "rb")))

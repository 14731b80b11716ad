"""Fork server: a process that imports large libraries once and forks children, which start faster than new processes.

    python -m rlcore.system.fork_server LISTENING_DESCRIPTOR MODULE ...       (called by `start_server`)

The server imports the modules on its command line and then waits for requests. Each module must have two functions:
`main`, and `load`, which imports the libraries that `main` needs.

1. A client sends a request with a module, its arguments, environment variables and working directory. With SCM_RIGHTS,
   it also sends the descriptors of a lifeline (pipe that is closed when the client ends), stdin, stdout and stderr.
2. The server forks. The child applies the settings of the request in a new session and calls `main` of the module.
3. When the child ends, the server sends its exit code to the client.

The child ends when its client ends, but not when the server ends. If the server ends before the child, the client can
still detect the end of the child, with a pidfd that it received from the server.

A forked child computes the same results as a new process, because the server has a single thread, does not use CUDA and
does not draw random numbers. The server declines a request if environment variables that libraries read during their
import differ from its own. The client then starts a new process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

import rlcore
from rlcore.system.forked import Forked, open_pipes, start_session
from rlcore.system.lifeline import import_path, spawn

PATIENCE = 60.0  # seconds to wait for a reply; a server that has just started imports first
# Variables that are read when Python or a library is loaded, so that a fork cannot change them. SHEPHERD_CODE
# identifies the source code.
LIBRARIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ATEN_")
AT_IMPORT = ("PYTHON", "LD_", "MALLOC_", *LIBRARIES, "SHEPHERD_CODE")
# Exceptions: variables that every child gets, and those that scikit-learn sets when the report of a sweep imports it.
ANEW = ("PYTHONPATH", "PYTHONUNBUFFERED", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


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
    body = json.dumps(request).encode() + b"\n"
    theirs, ours = open_pipes()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(str(address))
        socket.send_fds(connection, [body[:1]], [*theirs, stderr])
        connection.sendall(body[1:])
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
    return Forked(int(pid), pidfd, ours, connection)


class _Server:
    def __init__(self, listening: socket.socket, modules: Sequence[str]) -> None:
        self.listening, self.modules = listening, modules
        before = dict(os.environ)
        for module in modules:
            importlib.import_module(module).load()
        # Clients that have imported the same libraries may have these variables already.
        self.set_by_imports = {key: value for key, value in os.environ.items() if key not in before}
        self.fixed = _at_import(self.set_by_imports | before)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listening, selectors.EVENT_READ)
        self.children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, connection to the client

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self.selector.select():
                if key.fd in self.children:
                    self._bury(key.fd)
                else:
                    self._answer(self.listening.accept()[0])

    def _bury(self, pidfd: int) -> None:
        pid, connection = self.children.pop(pidfd)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):  # the client has ended
            connection.sendall(str(code).encode())
        connection.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        descriptors: list[int] = []
        try:
            first, received, _, _ = socket.recv_fds(connection, 1, 4, socket.MSG_CMSG_CLOEXEC)
            descriptors.extend(received)
            with connection.makefile("rb") as reading:
                request = json.loads(first + reading.readline())
            if len(descriptors) != 4 or not self._can(request):
                connection.close()
                return
            pid = os.fork()
            if pid == 0:
                self._become(request, descriptors, connection)
            pidfd = os.pidfd_open(pid)
            self.children[pidfd] = pid, connection
            self.selector.register(pidfd, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # the client has ended, so the child ends too
                socket.send_fds(connection, [str(pid).encode()], [pidfd])
        except (OSError, ValueError):
            connection.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _can(self, request: dict[str, Any]) -> bool:
        """Return True if a fork of the server computes the same as a new process would for this request."""
        spec = PathFinder.find_spec("rlcore", request["path"].split(os.pathsep))
        same = spec is not None and spec.origin == rlcore.__file__
        fixed = _at_import(self.set_by_imports | request["env"])
        return same and request["module"] in self.modules and fixed == self.fixed

    def _become(self, request: dict[str, Any], descriptors: Sequence[int], connection: socket.socket) -> NoReturn:
        """In the forked child, apply the settings of the request, call `main` of its module, and exit."""
        try:
            self.selector.close()
            for _, other in self.children.values():
                other.close()
            for pidfd in self.children:
                os.close(pidfd)
            self.listening.close()
            connection.close()
            start_session(descriptors)
            os.environ.clear()
            os.environ.update(self.set_by_imports | request["env"])
            os.chdir(request["cwd"])
            sys.path[:] = dict.fromkeys([*request["path"].split(os.pathsep), *sys.path])
            sys.argv[:] = [request["module"], *request["arguments"]]
            if numpy := sys.modules.get("numpy"):
                # As in a new process: otherwise NumPy's global generator, which environments may use, would be equal in
                # all forks.
                numpy.random.seed()
            importlib.import_module(request["module"]).main()
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that Python or a library reads while it is loaded; forks cannot change them."""
    fixed = {key: value for key, value in environment.items() if key.startswith(AT_IMPORT) and key not in ANEW}
    # OpenCV adds its own folder when it is imported.
    paths = [path for path in fixed.pop("LD_LIBRARY_PATH", "").split(":") if path and "/cv2/" not in path]
    return fixed | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})


def main() -> NoReturn:
    """Import the modules and answer requests until the parent process ends."""
    listening, *modules = sys.argv[1:]
    _Server(socket.socket(fileno=int(listening)), modules).serve()


if __name__ == "__main__":
    main()

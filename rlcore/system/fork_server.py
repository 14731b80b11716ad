"""Fork server: process that imports large libraries once and forks children, which start faster than new processes.

    python -m rlcore.system.fork_server LISTENING_DESCRIPTOR MODULE ...       (by `forked.start_server`)

The server imports the modules and waits for requests. Each module has `main`, and `load`, which imports what `main`
needs. A client sends a module, its arguments, environment and working directory. With SCM_RIGHTS it also sends the
descriptors of a lifeline, stdin, stdout and stderr. The server forks; the child applies these settings in its own
session and calls `main`. The child ends when its client ends, not when the server ends. The server reports the child's
exit code to the client. If the server ends first, the child continues, and the client learns from the pidfd when it
ends.

A forked child computes the same results as a new process: when the server forks, it has one thread, has not used CUDA,
and has not drawn random numbers. It declines a request if settings that libraries read at import have changed since it
started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from typing import Any, NoReturn

import rlcore
from rlcore.system.forked import HEADER, PATIENCE
from rlcore.system.lifeline import die_with_parent

# Variables that are read when Python or a library is loaded, so that a fork cannot change them. SHEPHERD_CODE
# identifies the source code.
LIBRARIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ATEN_")
AT_IMPORT = ("PYTHON", "LD_", "MALLOC_", *LIBRARIES, "SHEPHERD_CODE")
# Exceptions: variables that every child gets, and those that scikit-learn sets when the report of a sweep imports it.
ANEW = ("PYTHONPATH", "PYTHONUNBUFFERED", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


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
            request = self._receive(connection, descriptors)
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

    @staticmethod
    def _receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
        """Receive a request and return it; append its descriptors to the list."""
        header, received, _, _ = socket.recv_fds(connection, HEADER.size, 4, socket.MSG_CMSG_CLOEXEC)
        descriptors.extend(received)
        if len(header) < HEADER.size:
            raise ValueError("incomplete request")
        with connection.makefile("rb") as reading:
            return json.loads(reading.read(HEADER.unpack(header)[0]))

    def _can(self, request: dict[str, Any]) -> bool:
        """Return True if a fork of this process is equivalent to a new process for this request."""
        spec = PathFinder.find_spec("rlcore", request["path"].split(os.pathsep))
        same = spec is not None and spec.origin == rlcore.__file__
        fixed = _at_import(self.set_by_imports | request["env"])
        return same and request["module"] in self.modules and fixed == self.fixed

    def _become(self, request: dict[str, Any], descriptors: Sequence[int], connection: socket.socket) -> NoReturn:
        """Apply the request in the child, run the module, and exit."""
        try:
            self.selector.close()
            for _, other in self.children.values():
                other.close()
            for pidfd in self.children:
                os.close(pidfd)
            self.listening.close()
            connection.close()
            lifeline, *standard = descriptors
            os.setsid()
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
                os.close(descriptor)
            die_with_parent(lifeline)
            os.environ.clear()
            os.environ.update(self.set_by_imports | request["env"])
            os.chdir(request["cwd"])
            sys.path[:] = dict.fromkeys([*request["path"].split(os.pathsep), *sys.path])
            sys.argv[:] = [request["module"], *request["arguments"]]
            _seed_as_a_fresh_process()
            importlib.import_module(request["module"]).main()
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that are read when Python and its libraries are loaded."""
    fixed = {key: value for key, value in environment.items() if key.startswith(AT_IMPORT) and key not in ANEW}
    # OpenCV adds its own folder when it is imported.
    paths = [path for path in fixed.pop("LD_LIBRARY_PATH", "").split(":") if path and "/cv2/" not in path]
    return fixed | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})


def _seed_as_a_fresh_process() -> None:
    """Seed NumPy's global generator with entropy, so that it differs between forks; Shepherd does not draw from it."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def main() -> NoReturn:
    """Run the server."""
    listening, *modules = sys.argv[1:]
    _Server(socket.socket(fileno=int(listening)), modules).serve()


if __name__ == "__main__":
    main()

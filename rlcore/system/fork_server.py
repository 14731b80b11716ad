"""Children forked from one process that has imported what takes seconds, instead of started anew: the server.

    python -m rlcore.system.fork_server LISTENING_DESCRIPTOR MODULE ...       (by `forked.start_server`)

It imports the modules (each has `load`, which imports what its `main` will want, and `main`) and waits. Who asks sends
a module, its arguments, environment and working directory, and by SCM_RIGHTS a lifeline and what is to be stdin, stdout
and stderr. The server forks; the child takes all of that on, in a session of its own, and calls `main`. It ends with
whoever asked for it, not with the server. The server tells its exit code; where the server has ended first, the child
goes on, and whoever asked sees by its pidfd that it has ended.

A forked child computes what a fresh one does: the server has one thread when it forks, has touched no CUDA and drawn no
number, and declines where something that libraries read at import is not as it was when it started.
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

# Read when Python or a library is loaded, so that it cannot be changed in a fork; SHEPHERD_CODE tells the code.
LIBRARIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ATEN_")
AT_IMPORT = ("PYTHON", "LD_", "MALLOC_", *LIBRARIES, "SHEPHERD_CODE")
# Of these, what every child gets anyway, and what scikit-learn sets when a sweep's page imports it.
ANEW = ("PYTHONPATH", "PYTHONUNBUFFERED", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


class _Server:
    def __init__(self, listening: socket.socket, modules: Sequence[str]) -> None:
        self.listening, self.modules = listening, modules
        before = dict(os.environ)
        for module in modules:
            importlib.import_module(module).load()
        # Who asks may have imported the same and have these set already.
        self.set_by_imports = {key: value for key, value in os.environ.items() if key not in before}
        self.fixed = _at_import(self.set_by_imports | before)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listening, selectors.EVENT_READ)
        self.children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, who asked

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
        with contextlib.suppress(OSError):  # who asked has ended
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
            with contextlib.suppress(OSError):  # who asked has ended, and the child does
                socket.send_fds(connection, [str(pid).encode()], [pidfd])
        except (OSError, ValueError):
            connection.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    @staticmethod
    def _receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
        """The request; the descriptors that come with it are put into the list."""
        header, found, _, _ = socket.recv_fds(connection, HEADER.size, 4, socket.MSG_CMSG_CLOEXEC)
        descriptors.extend(found)
        if len(header) < HEADER.size:
            raise ValueError("no request")
        with connection.makefile("rb") as reading:
            return json.loads(reading.read(HEADER.unpack(header)[0]))

    def _can(self, request: dict[str, Any]) -> bool:
        """Tell whether a fork of this process is what a fresh one would be."""
        found = PathFinder.find_spec("rlcore", request["path"].split(os.pathsep))
        same = found is not None and found.origin == rlcore.__file__
        fixed = _at_import(self.set_by_imports | request["env"])
        return same and request["module"] in self.modules and fixed == self.fixed

    def _become(self, request: dict[str, Any], descriptors: Sequence[int], connection: socket.socket) -> NoReturn:
        """In the child: take on what was asked for, and run the module."""
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
    """Variables of an environment that are read when Python and its libraries are loaded."""
    found = {key: value for key, value in environment.items() if key.startswith(AT_IMPORT) and key not in ANEW}
    # OpenCV puts its own folder there when it is imported.
    paths = [path for path in found.pop("LD_LIBRARY_PATH", "").split(":") if path and "/cv2/" not in path]
    return found | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})


def _seed_as_a_fresh_process() -> None:
    """Let NumPy's global generator, which nothing here draws from, differ from that of every other fork."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def main() -> NoReturn:
    """Entry point of the server."""
    listening, *modules = sys.argv[1:]
    _Server(socket.socket(fileno=int(listening)), modules).serve()


if __name__ == "__main__":
    main()

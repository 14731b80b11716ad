"""Start of trainer processes, with a fork server for many runs in a row.

The imports of a trainer process take longer than a short training. Inside `warm_trainers`, trainer processes are
therefore forked from a server that has already imported the modules. All runs also share one process
of about 0.3 GB that copies event logs to tracking backends such as MLflow.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from flows.process.network import listen
from flows.runs.lineage import code_version
from flows.settings import WARM, state_folder, warm_folder
from flows.tracking.mirror import settle, share_mirror
from rlcore.system.fork_server import fork, start_server
from rlcore.system.forked import Forked
from rlcore.system.lifeline import spawn

TRAINER = "rlcore.train.server"
TRAINERS = "trainers"  # file name of the server's socket


@contextmanager
def warm_trainers(*others: str) -> Iterator[None]:
    """Context manager in which trainer processes are forked from a server process.

    All runs share one process that copies event logs to the tracking backends, such as MLflow.

    The server is a process that has already imported the modules of a trainer and the modules `others`. Child processes
    of this process use the server, too. If the library settings or the code of a trainer differ from those of the
    server, the trainer is started as a new process instead.
    """
    if warm_folder() is not None:  # the parent process has started the servers
        yield
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shepherd-", dir=_short())))
        with listen(folder / TRAINERS) as trainers:
            server = start_server(trainers, TRAINER, *others, env=_environment())
        stack.callback(_end, server)
        stack.enter_context(share_mirror(folder))
        os.environ[WARM] = str(folder)
        stack.callback(os.environ.pop, WARM, None)
        stack.callback(settle)
        yield


def start_warm(
    module: str, *arguments: str, log: IO[bytes], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes] | Forked:
    """Start a process that runs `python -m MODULE ARGUMENT ...`, and return its handle.

    Inside `warm_trainers`, the process is forked from a server that has already imported its modules. stdin and stdout
    of the process are pipes; stderr is written to `log`.
    """
    environment, folder = _environment() | dict(env or {}), warm_folder()
    if folder is not None:
        forked = fork(folder / TRAINERS, module, *arguments, env=environment, stderr=log.fileno())
        if forked is not None:
            return forked
    return spawn(
        module,
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        # Ctrl-C sends SIGINT to the terminal's process group. The trainer would get two signals, one of them from this
        # process, and the second signal ends it without a checkpoint.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    cache = {"SHEPHERD_CACHE": str(state_folder() / "compiled")}
    return cache | os.environ | {"PYTHONUNBUFFERED": "1", "SHEPHERD_CODE": json.dumps(code_version())}


def _short() -> str | None:
    """Return the parent folder for the folder of the server's socket; None for the default of `tempfile`.

    It is /tmp if socket paths in the default folder would exceed 107 characters, the limit of the operating system.
    """
    return None if len(tempfile.gettempdir()) < 70 else "/tmp"


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()

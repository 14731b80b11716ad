"""The trainers' processes; and, for many runs in a row, a process that forks them warm, and one mirror for all.

To import what a trainer needs takes longer than a short training, and a mirror 0.3 GB.
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
from rlcore.store.directory import RunDirectory
from rlcore.system.forked import Forked, fork, start_server
from rlcore.system.lifeline import spawn

TRAINER = "rlcore.train.trainer"
TRAINERS = "trainers"  # the server's socket


@contextmanager
def warm_trainers(*others: str) -> Iterator[None]:
    """Have the trainers that this process and its children start inside the `with` forked, and one mirror serve all.

    A trainer that cannot be forked (other libraries' settings, other code than at the start) is started anew, as ever.
    `others` are modules that `start_warm` forks besides.
    """
    if warm_folder() is not None:  # who started this process has done so
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


def start_trainer(run: RunDirectory, log: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
    """The process that trains a run: `start_warm`."""
    return start_warm(TRAINER, str(run.path), log=log)


def start_warm(
    module: str, *arguments: str, log: IO[bytes], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes] | Forked:
    """`python -m MODULE ARGUMENT ...` with pipes to it and its other output in a file: forked warm, or new."""
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
        # Ctrl-C reaches a terminal's whole process group: the trainer would hear it twice, once from us, and a second
        # signal ends it without a checkpoint.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    cache = {"SHEPHERD_CACHE": str(state_folder() / "compiled")}
    return cache | os.environ | {"PYTHONUNBUFFERED": "1", "SHEPHERD_CODE": json.dumps(code_version())}


def _short() -> str | None:
    """The folder for temporary files, unless its name is too long for a socket's, which has 107 characters."""
    return None if len(tempfile.gettempdir()) < 70 else "/tmp"


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()

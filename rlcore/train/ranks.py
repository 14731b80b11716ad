"""Worker ranks of training on several devices: child processes of the trainer, each with its own environments.

Rank 0 is the trainer. Only this rank communicates with the parent process, writes, logs and evaluates. It sends
commands (`advance N`, `save`, `stop`) to the stdin of the other ranks. Tensors are exchanged through torch.distributed.
The ranks connect through an unnamed file that no other user can open (`rlcore.train.fabric`).
If one rank ends, all ranks end: their next exchange of tensors fails, and worker ranks end when the trainer ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.config.run import RunConfig
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn

VARIABLE = "SHEPHERD_RANKS_STORE"  # number of the descriptor of the file through which the ranks connect
KNOWN = {error.__name__: error for error in (UserError, RunError, EnvironmentFault)}


class WorkerRanks:
    """Child processes for the ranks 1 to N-1 of a run with N ranks. The constructor starts them.

    There are no child processes if N = 1, or if this process is one of these ranks (a worker rank).
    """

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        if config.fabric.ranks == 1 or VARIABLE in os.environ:
            return
        store = os.memfd_create("ranks")  # never closed, because torch opens it by its descriptor at any time
        common = {VARIABLE: str(store), "WORLD_SIZE": str(config.fabric.ranks), "NODE_RANK": "0"}
        for rank in range(1, config.fabric.ranks):
            variables = os.environ | common | {"LOCAL_RANK": str(rank)}
            pipe, module = subprocess.PIPE, "rlcore.train.worker_rank"
            self.children.append(spawn(module, str(run.path), pass_fds=[store], env=variables, stdin=pipe, stdout=pipe))
        os.environ.update(common, LOCAL_RANK="0")

    def send(self, command: str) -> None:
        """Send a command to every worker rank."""
        with self.translate_failures():
            for child in self.children:
                assert child.stdin is not None
                child.stdin.write(f"{command}\n".encode())
                child.stdin.flush()

    @contextmanager
    def translate_failures(self) -> Iterator[None]:
        """Context manager for communication with other ranks.

        If the communication fails because a worker rank has ended, the error of that worker rank is raised.
        """
        try:
            yield
        except (RuntimeError, OSError) as error:
            if isinstance(error, (RunError, UserError)) or not self.children:
                raise
            raise self._why() or error from error

    def _why(self) -> Exception | None:
        """Return the error of the rank that ended first, or its exit status; the other ranks end as a consequence."""
        deadline = time.monotonic() + 5
        while all(child.poll() is None for child in self.children) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # wait for a killed rank as well as for ranks that failed as a consequence
        reported: list[Exception] = []
        killed: list[Exception] = []
        other: list[Exception] = []
        for rank, child in enumerate(self.children, 1):
            code = child.poll()
            if code is None:
                continue
            assert child.stdout is not None
            if line := child.stdout.readline():
                report = json.loads(line)
                reported.append(KNOWN.get(report["kind"], RunError)(f"rank {rank}: {report['sentence']}"))
            elif code < 0:
                killed.append(RunError(f"rank {rank} of the training was killed by signal {-code}"))
            else:
                other.append(RunError(f"rank {rank} of the training ended with exit code {code}"))
        return next(iter((*reported, *killed, *other)), None)

    def close(self) -> None:
        """Kill the worker ranks and wait for their end."""
        for child in self.children:
            child.kill()
            child.wait()
        self.children = []

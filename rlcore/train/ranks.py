"""The other ranks of a training on several devices: children of the trainer, each with environments of its own.

Rank 0 is the trainer: it alone talks to the driver, writes, logs and evaluates. It tells the others what to do by lines
on their stdin, `advance N` or `save` or `stop`; what they compute together they exchange through torch.distributed.
They find each other in a file without a name, which no other user can open (`rlcore.train.rendezvous`).
A rank that ends, ends all: the others' next exchange fails, and their lifelines are the trainer's.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.config.groups import RunConfig
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn
from rlcore.train.rendezvous import VARIABLE

KNOWN = {error.__name__: error for error in (UserError, RunError, EnvironmentFault)}


class WorkerRanks:
    """Ranks 1 to N-1 of a run, started here; none where there is one rank, or where this process is one of them."""

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        if config.fabric.ranks == 1 or VARIABLE in os.environ:
            return
        store = os.memfd_create("ranks")  # never closed: torch opens it by its number until this process ends
        common = {VARIABLE: str(store), "WORLD_SIZE": str(config.fabric.ranks), "NODE_RANK": "0"}
        for rank in range(1, config.fabric.ranks):
            variables = os.environ | common | {"LOCAL_RANK": str(rank)}
            pipe, module = subprocess.PIPE, "rlcore.train.worker_rank"
            self.children.append(spawn(module, str(run.path), pass_fds=[store], env=variables, stdin=pipe, stdout=pipe))
        os.environ.update(common, LOCAL_RANK="0")

    def send(self, command: str) -> None:
        """Have every other rank do something."""
        with self.translate_failures():
            for child in self.children:
                assert child.stdin is not None
                child.stdin.write(f"{command}\n".encode())
                child.stdin.flush()

    @contextmanager
    def translate_failures(self) -> Iterator[None]:
        """Turn an exchange that failed because a rank has ended into its own sentence."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            if isinstance(error, (RunError, UserError)) or not self.children:
                raise
            raise self._why() or error from error

    def _why(self) -> Exception | None:
        """Reason of the rank that ended first, or how it ended; the others end because it did."""
        deadline = time.monotonic() + 5
        while all(child.poll() is None for child in self.children) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # one that was killed and one that failed over it are both there now
        told: list[Exception] = []
        killed: list[Exception] = []
        other: list[Exception] = []
        for rank, child in enumerate(self.children, 1):
            code = child.poll()
            if code is None:
                continue
            assert child.stdout is not None
            if line := child.stdout.readline():
                said = json.loads(line)
                told.append(KNOWN.get(said["kind"], RunError)(f"rank {rank}: {said['sentence']}"))
            elif code < 0:
                killed.append(RunError(f"rank {rank} of the training was killed by signal {-code}"))
            else:
                other.append(RunError(f"rank {rank} of the training ended with exit code {code}"))
        return next(iter((*told, *killed, *other)), None)

    def close(self) -> None:
        """End them."""
        for child in self.children:
            child.kill()
            child.wait()
        self.children = []

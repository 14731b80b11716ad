"""Termination of a flow or stage when the program that started it (a Prefect worker, DVC) has ended.

If that program is killed, training must not continue in the background. A trainer process ends together with the
process that started it, because a pipe connects the two (`rlcore.system.lifeline`). No such pipe connects a flow or a
stage with a worker or DVC, so this module polls the parent processes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from flows.process.signals import close_dead_outputs
from rlcore.system.lifeline import alive

LOOK_EVERY = 1.0  # seconds between two checks
WORKER = "SHEPHERD_WORKER"  # variable in the environment of every process that flows.workers.worker starts


@contextmanager
def exit_with_parent(*programs: str, certain: bool = False) -> Iterator[None]:
    """Context manager that sends this process SIGTERM when the program that started it has ended.

    Args:
        *programs: names of the programs to watch: commands, or packages and modules that are run by `python -m`.
        certain: what happens if no parent process runs one of the programs. True: SIGTERM is sent, because the caller
            knows that one of them started this process, so it must have ended. False: nothing is watched.
    """
    over = threading.Event()
    threading.Thread(target=_leave_with, args=(_above(programs), certain, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _above(programs: tuple[str, ...]) -> list[psutil.Process]:
    """Return the parent, grandparent etc. of this process, up to the farthest one that runs one of the programs.

    The list is empty if none of them does.
    """
    parents = psutil.Process().parents()
    return parents[: max((above for above, parent in enumerate(parents, 1) if _is(programs, parent)), default=0)]


def _is(programs: tuple[str, ...], process: psutil.Process) -> bool:
    """Return True if a process runs one of the programs: a command (`dvc`) or module (`python -m prefect.engine`)."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    if "-m" not in words[:4]:
        return any(Path(word).name in programs for word in words[:2])
    module, *arguments = words[words.index("-m") + 1 :]
    if module == "rlcore.system.lifeline":
        module = arguments[1]
    return module in programs or module.partition(".")[0] in programs


def _leave_with(above: list[psutil.Process], certain: bool, over: threading.Event) -> None:
    while not over.wait(LOOK_EVERY):
        if (certain and not above) or not all(parent.is_running() and alive(parent.pid) for parent in above):
            close_dead_outputs()
            os.kill(os.getpid(), signal.SIGTERM)
            return

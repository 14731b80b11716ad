"""Ending with the program that runs this process: a worker or DVC that was killed must not leave a training behind.

The trainer ends with whoever started it (`rlcore.system.lifeline`). Between a flow or a stage and the program
above it there is no such pipe, so its life is looked at.
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

LOOK_EVERY = 1.0  # seconds
WORKER = "SHEPHERD_WORKER"  # set in the environment of all that flows.workers.worker starts


@contextmanager
def exit_with_parent(*programs: str, certain: bool = False) -> Iterator[None]:
    """Inside the `with`, send this process SIGTERM when the program that runs it has ended: it ends well by that.

    Programs are commands, or packages and modules run by `python -m`. Where none such is above this process, nothing is
    watched; when it is `certain` that one was, it has ended already.
    """
    over = threading.Event()
    threading.Thread(target=_leave_with, args=(_above(programs), certain, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _above(programs: tuple[str, ...]) -> list[psutil.Process]:
    """Parent of this process, its parent, and so on up to the last one that is one of the programs."""
    parents = psutil.Process().parents()
    return parents[: max((above for above, parent in enumerate(parents, 1) if _is(programs, parent)), default=0)]


def _is(programs: tuple[str, ...], process: psutil.Process) -> bool:
    """Tell whether a process is one of some programs, by its name or as a module: `dvc`, `python -m prefect.engine`."""
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

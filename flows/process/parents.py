"""Ending with the program that runs this process: a worker or DVC that was killed must not leave a training behind.

The trainer ends with whoever started it (`rlcore.system.lifeline`). Between a flow or a stage and the program
above it there is no such pipe, so its life is looked at.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rlcore.system.lifeline import alive

LOOK_EVERY = 1.0  # seconds


@contextmanager
def leaving_with(*programs: str, certain: bool = False) -> Iterator[None]:
    """Send this process SIGTERM, as the program that runs it does to end it well, when that program has ended.

    Args:
        *programs: names of commands, or of packages and modules run by `python -m`. Where none such is above this
            process, nothing is watched.
        certain: it was started by the program: where none is above it now, that has ended already.

    Yields:
        Once; the programs are watched inside the `with`.
    """
    over = threading.Event()
    threading.Thread(target=_leave_with, args=(_above(programs), certain, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _above(programs: tuple[str, ...]) -> list[psutil.Process]:
    """This process's parent, its parent, and so on up to the last one that is one of the programs."""
    parents = psutil.Process().parents()
    return parents[: max((above for above, parent in enumerate(parents, 1) if _is(programs, parent)), default=0)]


def _is(programs: tuple[str, ...], process: psutil.Process) -> bool:
    """Whether a process is one of them, started by its name or as a module: `dvc`, `python -m prefect.engine`."""
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


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or not alive(process.pid)


def _leave_with(above: list[psutil.Process], certain: bool, over: threading.Event) -> None:
    while not over.wait(LOOK_EVERY):
        if any(map(_has_ended, above)) or (certain and not above):
            _let_go_of_output()
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _let_go_of_output() -> None:
    """Nobody reads now what the program above read: last words must not fail for it (Rich would end the process)."""
    look = select.poll()
    for descriptor in (1, 2):
        look.register(descriptor, 0)
    with open(os.devnull, "wb") as nowhere:
        for descriptor, event in look.poll(0):
            if event & select.POLLERR:
                os.dup2(nowhere.fileno(), descriptor)

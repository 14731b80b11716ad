"""What a training flow does besides, when a Prefect worker runs it: nobody sits at its terminal.

A retried flow run goes on in the run directory it had. Its log tells what a terminal would show. When its worker is
gone it ends well by itself, and does not train on unseen.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.home import state_folder
from flows.watching import watching
from rlcore.lifeline import stat
from rlcore.run.directory import RunDirectory, write_text

LOOK_EVERY = 1.0  # seconds
NAMES = ("run_name=", "run_dir=")


def flow_run_id() -> str | None:
    """The id of the flow run that a worker executes in this process; None at a terminal, in a notebook, in a test."""
    from prefect.runtime import deployment, flow_run

    return str(flow_run.get_id()) if deployment.get_id() else None


def place(flow_run: str) -> str | None:
    """The run directory that an earlier attempt of a flow run has made, if there was one."""
    note = _note(flow_run)
    return note.read_text() if note.exists() else None


def remember(flow_run: str, run: RunDirectory) -> None:
    """Note where a flow run trains, for its next attempt."""
    write_text(_note(flow_run), str(run.path))


def named(flow_run: str, overrides: list[str]) -> list[str]:
    """The overrides, with a run name of the flow run's own: two that start in the same second must not meet."""
    if any(override.startswith(NAMES) for override in overrides):
        return overrides
    return [*overrides, f"run_name={time.strftime('%Y-%m-%d_%H-%M-%S')}_{flow_run[:8]}"]


@contextmanager
def supervised() -> Iterator[None]:
    """Tell the flow run's log what happens, and end by SIGTERM when the worker is gone.

    Yields:
        Nothing.
    """
    from prefect import get_run_logger

    from flows.training import describe

    log = get_run_logger()

    def watcher(kind: str, facts: dict[str, Any]) -> None:
        if kind != "progress" and (sentence := describe(kind, facts)) is not None:
            log.info(sentence)

    over = threading.Event()
    threading.Thread(target=_leave_with, args=(_ancestors(), over), daemon=True).start()
    try:
        with watching(watcher):
            yield
    finally:
        over.set()


def _ancestors() -> list[int]:
    """This process's parent, its parent, and so on up to the worker."""
    found, pid = [], os.getppid()
    while pid > 1 and _is_prefect(pid):
        found.append(pid)
        pid = int("".join(stat(pid)[1:2]) or 0)
    return found


def _is_prefect(pid: int) -> bool:
    try:
        return b"prefect" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def _leave_with(ancestors: list[int], over: threading.Event) -> None:
    """Send this process SIGTERM, as a worker that ends well does, when one of the others has ended."""
    while not over.wait(LOOK_EVERY):
        if any(stat(pid)[:1] in ([], ["Z"]) for pid in ancestors):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _note(flow_run: str) -> Path:
    return state_folder() / "flow_runs" / flow_run

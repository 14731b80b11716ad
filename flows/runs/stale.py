"""Stale runs, which are unfinished runs with a dead process.

The operating system has released the lock of such a run, but its event log has no end event.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from flows.runs.milestones import is_over, note_died
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.history import history

REASON = "its process has died"


@dataclass(frozen=True)
class StaleRun:
    """Unfinished run without a process that drives it.

    Attributes:
        run: its run directory.
        state: "died" if training was unfinished; "not judged" if only the evaluation or registration was unfinished.
        marked: True if the event log has an end event already.
    """

    run: RunDirectory
    state: str
    marked: bool


def find_stale(run: RunDirectory) -> StaleRun | None:
    """Return the state of an unfinished run whose process has died.

    Return None if a process drives the run, or if the event log shows that the run ended regularly.
    """
    ended = history(run.events).ended
    status = ended["status"] if ended else "died"
    complete = status in COMPLETE
    if status not in (*COMPLETE, "died") or (complete and is_over(run)) or run.is_taken():
        return None
    return StaleRun(run, "not judged" if complete else "died", marked=complete or ended is not None)


def find_other_machine(run: RunDirectory) -> str | None:
    """Return the name of the machine that drove a run last, or None if it is this machine.

    The locks of another machine may be invisible here.
    """
    notes = [path.read_text(errors="replace") for path in (run.driver, run.lock) if path.exists()]
    hosts = [note.partition(" on ")[2].strip() for note in notes]
    return next((host for host in hosts if host and host != socket.gethostname()), None)


def mark_died(stale: StaleRun) -> bool:
    """Write to the event log that a run died. The event is on the disk when this returns.

    Return False without writing if another process drives the run by now.
    """
    try:
        with stale.run.driving():
            note_died(stale.run, "died", REASON)
    except UserError:
        return False
    return True

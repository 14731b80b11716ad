"""Stale runs: their process has died. The operating system released its lock, and the event log has no end."""

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
        state: "died" if training was not finished; "not judged" if it was, but not the evaluation or registration.
        marked: True if the event log has an end event already.
    """

    run: RunDirectory
    state: str
    marked: bool


def find_stale(run: RunDirectory) -> StaleRun | None:
    """Return the state of a run with a dead process; None if a process drives the run or its log has a regular end."""
    ended = history(run.events).ended
    status = ended["status"] if ended else "died"
    complete = status in COMPLETE
    if status not in (*COMPLETE, "died") or (complete and is_over(run)) or run.is_taken():
        return None
    return StaleRun(run, "not judged" if complete else "died", marked=complete or ended is not None)


def find_other_machine(run: RunDirectory) -> str | None:
    """Return the machine that drove a run last, if it is not this one: its locks may be invisible here."""
    notes = [path.read_text(errors="replace") for path in (run.driver, run.lock) if path.exists()]
    hosts = [note.partition(" on ")[2].strip() for note in notes]
    return next((host for host in hosts if host and host != socket.gethostname()), None)


def mark_died(stale: StaleRun) -> bool:
    """Write durably to the event log that a run died. Return False if another process drives the run by now."""
    try:
        with stale.run.driving():
            note_died(stale.run, "died", REASON)
    except UserError:
        return False
    return True

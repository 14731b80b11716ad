"""Runs whose process is gone: found by their locks, which the operating system frees, and their event logs."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from flows.runs.milestones import is_over, note_died
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.history import history

REASON = "its process is gone"


@dataclass(frozen=True)
class StaleRun:
    """A run that nobody leads, and that has not come to its end.

    Attributes:
        run: where it lies.
        state: "died" while it trained, or "not judged": trained to the end, but not evaluated or registered.
        marked: the event log tells of it already.
    """

    run: RunDirectory
    state: str
    marked: bool


def find_stale(run: RunDirectory) -> StaleRun | None:
    """End of a run whose process is gone; None where one leads it, or it ended with a word."""
    ended = history(run.events).ended
    status = ended["status"] if ended else "died"
    complete = status in COMPLETE
    if status not in (*COMPLETE, "died") or (complete and is_over(run)) or run.is_taken():
        return None
    return StaleRun(run, "not judged" if complete else "died", marked=complete or ended is not None)


def find_other_machine(run: RunDirectory) -> str | None:
    """The machine whose process led a run last, where that is another than this: its locks may not be seen here."""
    notes = [path.read_text(errors="replace") for path in (run.driver, run.lock) if path.exists()]
    hosts = [note.partition(" on ")[2].strip() for note in notes]
    return next((host for host in hosts if host and host != socket.gethostname()), None)


def mark_died(found: StaleRun) -> bool:
    """Note in the event log that a run died, durably; False where another process was quicker and leads it now."""
    try:
        with found.run.driving():
            note_died(found.run, "died", REASON)
    except UserError:
        return False
    return True

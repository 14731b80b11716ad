"""Stale runs: unfinished runs whose process has died.

An unfinished run counts as stale if no process has locked it. The operating system releases the lock of a dead process.
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
    """Unfinished run that no process is executing.

    Attributes:
        run: directory of the run.
        state: "died" if training was unfinished. "not judged" if training has finished, but the final evaluation or the
            registration of the model has not.
        marked: True if the event log already contains that the run died or ended (an `end` event).
    """

    run: RunDirectory
    state: str
    marked: bool


def find_stale(run: RunDirectory) -> StaleRun | None:
    """Return a `StaleRun` if a run is unfinished and its process has died.

    Return None if a process is executing the run, or if the event log shows that the run ended regularly.
    """
    ended = history(run.events).ended
    status = ended["status"] if ended else "died"
    complete = status in COMPLETE
    if status not in (*COMPLETE, "died") or (complete and is_over(run)) or run.is_taken():
        return None
    return StaleRun(run, "not judged" if complete else "died", marked=complete or ended is not None)


def find_other_machine(run: RunDirectory) -> str | None:
    """Return the name of the machine that last executed a run, or None if it is this machine.

    A lock that another machine has set on a shared file system may not be visible on this machine.
    """
    notes = [path.read_text(errors="replace") for path in (run.driver, run.lock) if path.exists()]
    hosts = [note.partition(" on ")[2].strip() for note in notes]
    return next((host for host in hosts if host and host != socket.gethostname()), None)


def mark_died(stale: StaleRun) -> bool:
    """Write to the event log that a run died. The event is on the disk when this function returns.

    Return True if the event was written. Return False if another process has started to execute the run meanwhile.
    """
    try:
        with stale.run.driving():
            note_died(stale.run, "died", REASON)
    except UserError:
        return False
    return True

"""Milestones in a run's event log that the trainer does not write: start, result of the random policy, and end.

Each milestone is written once. A stale run is not finished, but no process has locked it: its process has ended, and
the operating system has released the lock.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flows.runs.listeners import emit
from rlcore.errors import RunError, UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE, EventLog
from rlcore.store.history import history
from rlcore.train.boundary import Boundary, status_of

REASON = "its process has died"


def note_start(run: RunDirectory) -> None:
    """Write the start event of a run, unless it exists, and report config keys without effect."""
    if history(run.events).last("start") is None:
        from flows.config.notices import notices  # Hydra

        identity = run.read_identity()
        EventLog(run.events).append("start", **{key: identity[key] for key in ("run_id", "algo", "env_id", "seed")})
        for notice in notices(config_of(run), run.read_overrides()):
            emit("stage", {"doing": notice})


def note_baseline(run: RunDirectory) -> None:
    """Write the random policy's result to the event log, unless the log already has it or the run has no dataset."""
    result = run.read_baseline()
    if result is not None and not has_baseline(run):
        note_result(run, result)


def has_baseline(run: RunDirectory) -> bool:
    """Return True if the event log contains the result of the random policy."""
    return history(run.events).last("baseline") is not None


def has_dataset(run: RunDirectory) -> bool:
    """Return True if the stage collect is complete.

    This means that the event log contains the random policy's result, and that the dataset is not damaged.
    """
    damaged = (run.dataset / "manifest.json").exists() and run.read_baseline() is None
    return has_baseline(run) and not damaged


def is_trained(run: RunDirectory) -> bool:
    """Return True if training has finished and was not pruned."""
    end = history(run.events).last("end")
    return end is not None and end["status"] != "pruned"


def is_evaluated(run: RunDirectory) -> bool:
    """Return True if no final evaluation is needed: it is disabled, or it is complete and still valid.

    The final evaluation of a resumed run is no longer valid if the checkpoint to evaluate or the number of episodes
    has changed.
    """
    from rlcore.store.checkpoint import choose  # numpy

    config = config_of(run)
    final = history(run.events).last("evaluation", final=True)
    if not config.algo.run_test:
        return True
    if final is None or final.get("checkpoint") != str(choose(run).relative_to(run.path)):
        return False
    return final["greedy"]["episodes"] == config.final_episodes


def is_registered(run: RunDirectory) -> bool:
    """Return True if a policy was registered after the end of training, or if registration is disabled."""
    config = run.read_config()
    if config.get("dry_run") or config.get("model_manager", {}).get("disabled"):
        return True
    newest_first = reversed(history(run.events).events)
    kinds = (e["kind"] for e in newest_first if e["kind"] == "registered" or e.get("status") in COMPLETE)
    return next(kinds, None) == "registered"


def is_over(run: RunDirectory) -> bool:
    """Return True if the flow is complete: the run is trained, evaluated and, unless disabled, registered."""
    return run.read_summary().get("status") in COMPLETE and is_registered(run)


def note_result(run: RunDirectory, result: dict[str, Any]) -> dict[str, Any]:
    """Write the random policy's result to the event log and return the event."""
    fields = ("mean", "std", "ci95", "episodes", "info")
    return EventLog(run.events).append("baseline", **{key: result[key] for key in fields if key in result})


def note_end(run: RunDirectory, boundary: Boundary) -> None:
    """Write the end event of a run whose training has finished or was pruned, unless it exists."""
    if not is_end_noted(run, boundary):
        EventLog(run.events).append("end", **_end_facts(boundary), reason=boundary.reason)


def is_end_noted(run: RunDirectory, boundary: Boundary) -> bool:
    """Return True if the last end event of a run is that of this boundary."""
    logged = history(run.events).last("end")
    return logged is not None and _end_facts(boundary).items() <= logged.items()


def _end_facts(boundary: Boundary) -> dict[str, Any]:
    return {"policy_steps": boundary.policy_steps, "status": status_of(boundary.reason)}


def note_died(run: RunDirectory, status: str, reason: str) -> None:
    """Write the end event of a run whose training did not finish.

    `status` is "interrupted", "failed" or "died". If the event log already has an end event for this training, nothing
    is written.
    """
    log = history(run.events)
    if log.ended is not None:
        return
    with suppress(RunError):  # for example on a full disk: the error that ended training is reported instead
        EventLog(run.events).append("end", status=status, policy_steps=log.policy_steps, reason=reason)


# Stale runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaleRun:
    """Unfinished run that no process is executing.

    Attributes:
        run: directory of the run.
        state: "died" if training was unfinished. "unfinished" if training has finished, but the final evaluation or
            the registration of the model has not.
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
    return StaleRun(run, "unfinished" if complete else "died", marked=complete or ended is not None)


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

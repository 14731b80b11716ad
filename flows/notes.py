"""What a run's event log is told by whoever drives it: its start and the random baseline, each once."""

from __future__ import annotations

from typing import Any

from rlcore.run.directory import RunDirectory
from rlcore.run.record import EventLog, last_event, read_events


def note_start(run: RunDirectory) -> None:
    """Begin a run's event log, unless it has begun."""
    if last_event(read_events(run.events), "start") is None:
        identity = run.read_identity()
        EventLog(run.events).append("start", **{key: identity[key] for key in ("run_id", "algo", "env_id", "seed")})


def note_baseline(run: RunDirectory) -> None:
    """Put the result of a dataset that is there already into the event log, unless it has one."""
    result = run.read_baseline()
    if result is not None and last_event(read_events(run.events), "baseline") is None:
        note_result(run, result)


def note_result(run: RunDirectory, result: dict[str, Any]) -> None:
    """Put the random policy's result into the event log."""
    EventLog(run.events).append("baseline", **{key: result[key] for key in ("mean", "std", "ci95", "episodes")})

"""Event log: append-only JSON lines, the source from which MLflow, TensorBoard and plots are made.

Each event has `kind` and `time` (seconds since 1970). Events of training also have `policy_steps` and `env_steps`, the
number of actions among them (rlcore/train/collect.py):

    start       run_id, algo, env_id, seed             once
    resume      policy_steps                           a new process continued from that checkpoint
    baseline    mean, std, ci95, episodes              the random policy
    metrics     policy_steps, values {name: number}    one window of metric.log_every
    evaluation  policy_steps, final, greedy {mean, std, ci95, episodes}, stochastic {...} (final only)
                metrics and evaluations in training: wall_s, cpu_s: seconds so far (not with metric.disable_timer)
    checkpoint  policy_steps, path, digest of the learning state, tensors (rlcore.store.compare.tensor_digests)
    registered  name, version, aliases
    end         status (finished, stopped_early, dry_run, pruned, interrupted, failed, died), policy_steps, reason

After a kill and a resume, the log can contain the same point twice. Training is deterministic, so both are equal except
for times, and readers keep the first of each (kind, policy_steps, final). A final evaluation with another number of
episodes is a different point.

Earlier versions wrote only `env_steps`, except in checkpoint events. For their events, readers return the policy steps
of the checkpoint at these env steps, if there is one (each evaluation has one). Otherwise they return the env steps,
which are a few percent fewer.

An incomplete last line, left by a kill, is dropped. A damaged line before it is skipped with a warning. A checkpoint
stores the number of points in the log, so that a resumed run can report how many were lost. Training does not depend on
the log: all state, including the evaluations for early stopping, is in the checkpoints.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlcore.errors import DiskFault, UserError
from rlcore.system.durable import make_directory, sync_directory

# Required fields; a line without them is not an event.
FIELDS: dict[str, dict[str, type]] = {
    "metrics": {"policy_steps": int, "values": dict},
    "evaluation": {"policy_steps": int, "final": bool, "greedy": dict},  # `greedy` has a mean
    "checkpoint": {"policy_steps": int},
    "resume": {"policy_steps": int},
    "end": {"status": str},
}
COMPLETE = ("finished", "stopped_early", "dry_run")  # statuses of completed training
MOST_STEPS = 2**63 - 1
log = logging.getLogger(__name__)
AnyEvent = TypeVar("AnyEvent", bound=Mapping[str, Any])


def last_event(events: Iterable[AnyEvent], kind: str, **fields: Any) -> AnyEvent | None:
    """Return the last event of a kind with these values, or None."""
    found = [e for e in events if e["kind"] == kind and all(e.get(k) == v for k, v in fields.items())]
    return found[-1] if found else None


def ending(events: Iterable[AnyEvent], ended: AnyEvent | None = None) -> AnyEvent | None:
    """Return the `end` event of training, or None if it is not ended or its process died without an event.

    If the last stages of a complete run are repeated, a trainer writes `resume` without training. The run stays
    complete until there are metrics or checkpoints after its end.

    Args:
        events: events of the log, or the new ones.
        ended: result for the events before these.

    Returns:
        The event, or None.
    """
    for event in events:
        if event["kind"] == "end":
            ended = event
        elif ended is not None:
            again = event["kind"] == "resume" and ended["status"] not in COMPLETE
            beyond = event["kind"] in ("metrics", "checkpoint") and event["policy_steps"] > ended["policy_steps"]
            ended = None if again or beyond else ended
    return ended


class EventLog:
    """Writer of an event log; several processes can append to the same file.

    Args:
        path: `events.jsonl`; created with the first event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event.

        All events except metrics are durable on return. Metrics are in the page cache of the operating system, which
        survives a killed process; `sync` makes them durable.

        Args:
            kind: a kind in the table above.
            **fields: its values, without NaN or infinity.

        Returns:
            The event.

        Raises:
            DiskFault: the write failed. An incomplete line is removed before the next event.
        """
        event = {"kind": kind, "time": round(time.time(), 3), **fields}
        line = json.dumps(event, allow_nan=False) + "\n"
        try:
            make_directory(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # else a line that another process is writing looks incomplete
                size = self._mend(descriptor)
                self._write(descriptor, line.encode())
                if kind != "metrics":
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                sync_directory(self.path.parent)
        except OSError as error:
            raise DiskFault(f"{self.path}: cannot write an event ({error.strerror or error})") from error
        return event

    def sync(self) -> None:
        """Make all events durable. Called before a checkpoint, because a resume from it does not repeat them."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DiskFault(f"{self.path}: cannot write an event ({error.strerror})") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise DiskFault(f"{self.path}: cannot make events durable ({error.strerror})") from error
        finally:
            os.close(descriptor)

    @staticmethod
    def _mend(descriptor: int) -> int:
        """Remove an incomplete last line and return the remaining size."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = os.pread(descriptor, size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        return size

    @staticmethod
    def _write(descriptor: int, line: bytes) -> None:
        while line:  # a disk that is almost full writes a part, and the next write fails
            line = line[os.write(descriptor, line) :]


class StepSet:
    """Set of step numbers with 8 bytes each, fast if they are added mostly in ascending order."""

    def __init__(self) -> None:
        self._ascending = array("q")

    def add(self, step: int) -> bool:
        """Add a step; return True if it is new."""
        known = self._ascending
        if not known or step > known[-1]:
            known.append(step)
            return True
        place = bisect_left(known, step)
        if known[place] == step:
            return False
        known.insert(place, step)
        return True


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log in order, without duplicate points and without an incomplete last line."""
    return EventReader(path).read()


class EventReader:
    """Incremental reader of a growing log: each `read` yields the events added since the last one.

    Args:
        path: `events.jsonl`, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset, self._lines = 0, 0  # number of bytes and lines read so far
        self._seen = {"metrics": StepSet(), "evaluation": StepSet()}
        self._judged: tuple[Any, ...] | None = None
        self._moments: dict[Any, int] = {}  # env steps -> policy steps of checkpoints

    def read(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events of all complete lines, or only of those that start before the byte `until`.

        The file is read lazily.
        """
        if not self.path.exists():
            return
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below; an error while reading is another one
        except OSError as error:
            fix = "restore it from a copy, or move it away to begin another log"
            raise UserError(f"{self.path}: cannot be read ({error.strerror}); {fix}") from None
        with file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n") or (until is not None and self.offset >= until):
                    return
                self.offset, self._lines = self.offset + len(line), self._lines + 1
                event = _event(line, self._moments)
                if event is None:
                    _tell(self.path, self._lines)
                elif not self._again(event):
                    yield event

    def _again(self, event: dict[str, Any]) -> bool:
        """Return True if an event repeats an earlier one."""
        if event["kind"] == "evaluation" and event["final"]:
            # Compared only with the last one: after evaluations with 100, 1,000 and 100 episodes, the last is new.
            before, self._judged = self._judged, (event["policy_steps"], event["greedy"].get("episodes"))
            return self._judged == before
        seen = self._seen.get(event["kind"])
        return seen is not None and not seen.add(event["policy_steps"])


def _event(line: bytes, moments: dict[Any, int]) -> dict[str, Any] | None:
    """Parse a line; return the event, or None if it is damaged.

    `moments` (env steps -> policy steps) has the earlier checkpoints; a checkpoint event is added to it.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    if isinstance(taken := event.get("env_steps"), int):
        event.setdefault("policy_steps", moments.get(taken, taken))
        if event["kind"] == "checkpoint":
            moments[taken] = event["policy_steps"]
    if not all(isinstance(event.get(name), kind) for name, kind in FIELDS.get(event["kind"], {}).items()):
        return None
    if "policy_steps" in event and not -MOST_STEPS <= event["policy_steps"] <= MOST_STEPS:
        return None
    return None if event["kind"] == "evaluation" and not isinstance(event["greedy"].get("mean"), int | float) else event


@functools.cache  # warn once per line, because a log is read many times in a process
def _tell(path: Path, number: int) -> None:
    log.warning("%s: line %d is damaged and was skipped", path, number)

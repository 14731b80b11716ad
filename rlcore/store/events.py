"""Event log of a run: a file of JSON lines to which events are appended, the source of all trackers and plots.

Each event has `kind` and `time` (seconds since 1970). Events of training also have `policy_steps` and `env_steps`. A
policy step in which an environment is only reset is not an environment step (rlcore/train/collect.py). The kinds are:

    start       run_id, algo, env_id, seed             written once, when the run starts
    resume      policy_steps                           a new process resumed the run at this number of policy steps
    baseline    mean, std, ci95, episodes              return of a random policy
    metrics     policy_steps, values {name: number}    averages since the previous metrics event
    evaluation  policy_steps, final (bool), greedy {mean, std, ci95, episodes}; if final, also stochastic {...}
    checkpoint  policy_steps, path, digest of the learning state, tensors (rlcore.store.compare.tensor_digests)
    callback    policy_steps, method, values           metrics that callbacks logged, except those of on_iteration
    registered  name, version, aliases                 the policy was added to the model registry
    end         status (finished, stopped_early, dry_run, pruned, interrupted, failed, died), policy_steps, reason

Metrics, and evaluations during training, also have wall_s and cpu_s: seconds of training so far. These are missing if
metric.disable_timer=true.

If a run is killed and resumed, it logs some events a second time. Because training is deterministic, the two events are
equal except for times. `EventReader` therefore skips a metrics event or an evaluation during training if an earlier one
has the same policy_steps. It skips a final evaluation if the previous final evaluation has the same policy_steps and
the same number of episodes.

An incomplete last line, which a killed process can leave, is ignored. Other damaged lines are skipped with a warning. A
checkpoint stores the number of values that were logged before it, so that a resumed run can report how many are missing
from the log. Training does not depend on the log: all state, including the evaluations for early stopping, is in the
checkpoints.
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
from rlcore.store.run_files import wrong_field
from rlcore.system.durable import make_directory, sync_directory

# Required fields; a line without them is not an event.
FIELDS: dict[str, dict[str, type]] = {
    "metrics": {"policy_steps": int, "values": dict},
    "evaluation": {"policy_steps": int, "final": bool, "greedy": dict},  # `greedy` has a mean
    "checkpoint": {"policy_steps": int},
    "resume": {"policy_steps": int},
    "callback": {"policy_steps": int, "method": str, "values": dict},
    "end": {"status": str},
}
COMPLETE = ("finished", "stopped_early", "dry_run")  # statuses of completed training
MOST_STEPS = 2**63 - 1
log = logging.getLogger(__name__)
AnyEvent = TypeVar("AnyEvent", bound=Mapping[str, Any])


def last_event(events: Iterable[AnyEvent], kind: str, **fields: Any) -> AnyEvent | None:
    """Return the last event of a kind in which all given fields have the given values; None if there is none."""
    found = [e for e in events if e["kind"] == kind and all(e.get(k) == v for k, v in fields.items())]
    return found[-1] if found else None


def ending(events: Iterable[AnyEvent], ended: AnyEvent | None = None) -> AnyEvent | None:
    """Return the `end` event of a run's training, or None if training runs or was killed.

    If a stage after training is repeated in a complete run, the trainer may log a `resume` event without training. The
    run still counts as ended, until metrics or a checkpoint with more policy steps follow.

    Args:
        events: all events of a log; in a repeated call, only the events that were added since the previous call.
        ended: result of the previous call; None in the first call.

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
    """Writer of an event log. Several processes can append to the same log.

    Args:
        path: path of `events.jsonl`; the file is created with the first event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event to the log.

        When this method returns, the event survives if the process is killed. All events except metrics also survive a
        power failure; metrics survive it after the next call of `sync`.

        Args:
            kind: kind of the event; the docstring of the module lists all kinds.
            **fields: values of the event; NaN and infinity are not allowed.

        Returns:
            The event.

        Raises:
            DiskFault: the write failed. If a part of the line was written, the next call removes it.
        """
        event = {"kind": kind, "time": round(time.time(), 3), **fields}
        line = json.dumps(event, allow_nan=False) + "\n"
        try:
            make_directory(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # else another process's line could look incomplete
                size = self._remove_incomplete_line(descriptor)
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
        """Make all events of the log durable, so that they survive a power failure.

        The trainer calls this before it writes a checkpoint: a run that resumes from the checkpoint does not log the
        earlier events again.
        """
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
    def _remove_incomplete_line(descriptor: int) -> int:
        """Remove an incomplete last line; return the size of the file after that."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = os.pread(descriptor, size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        return size

    @staticmethod
    def _write(descriptor: int, line: bytes) -> None:
        while line:  # if the disk is almost full, a part of the line is written, and the next write fails
            line = line[os.write(descriptor, line) :]


class StepSet:
    """Set of integers that needs 8 bytes per integer, and is fast if they are added mostly in ascending order."""

    def __init__(self) -> None:
        self._ascending = array("q")

    def add(self, step: int) -> bool:
        """Add an integer; return False if the set already contained it."""
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
    """Yield all events of a log in order; repeated events and an incomplete last line are skipped."""
    return EventReader(path).read()


class EventReader:
    """Reader of a growing event log: each call of `read` yields the events that were added since the previous call.

    Args:
        path: `events.jsonl`, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset, self._lines = 0, 0  # number of bytes and lines read so far
        self._seen = {"metrics": StepSet(), "evaluation": StepSet()}
        self._seen_methods: dict[str, StepSet] = {}  # of callback events
        self._last_final: tuple[Any, ...] | None = None

    def read(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events that were added since the previous call, line by line while the file is read.

        Repeated events and an incomplete last line are skipped.

        Args:
            until: position in the file, in bytes; only lines that start before it are read. None: all lines.

        Yields:
            The events, in order.
        """
        if not os.path.lexists(self.path):  # a symbolic link to a missing file is an error
            return
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below; an error while reading is another one
        except OSError as error:
            fix = "make it readable, restore it from a copy, or move it away, so that a new log is created"
            raise UserError(f"{self.path}: cannot be read ({error.strerror}); {fix}") from None
        with file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n") or (until is not None and self.offset >= until):
                    return
                self.offset, self._lines = self.offset + len(line), self._lines + 1
                event = parse_event(line)
                if event is None:
                    _warn_damaged_line(self.path, self._lines)
                elif not self._is_repeated(event):
                    yield event

    def _is_repeated(self, event: dict[str, Any]) -> bool:
        """Return True if an equal event was read before, so that this one is a repetition."""
        if event["kind"] == "evaluation" and event["final"]:
            # Compared only with the previous one: of evaluations with 100, 1,000 and 100 episodes, the third is new.
            before, self._last_final = self._last_final, (event["policy_steps"], event["greedy"].get("episodes"))
            return self._last_final == before
        seen = self._seen.get(event["kind"])
        if event["kind"] == "callback":
            seen = self._seen_methods.setdefault(event["method"], StepSet())
        return seen is not None and not seen.add(event["policy_steps"])


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the log; return the event, or None if the line is damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    if not all(isinstance(event.get(name), kind) for name, kind in FIELDS.get(event["kind"], {}).items()):
        return None
    if wrong_field(event) is not None:
        return None
    if "policy_steps" in event and not -MOST_STEPS <= event["policy_steps"] <= MOST_STEPS:
        return None
    return None if event["kind"] == "evaluation" and not isinstance(event["greedy"].get("mean"), int | float) else event


@functools.cache  # warn once per line, because a log is read many times in a process
def _warn_damaged_line(path: Path, number: int) -> None:
    log.warning("%s: line %d is damaged and was skipped", path, number)

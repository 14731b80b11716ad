"""The event log: append-only JSON lines, the truth that MLflow, TensorBoard and the pictures are made from.

Kinds, each with `kind` and `time` (seconds since 1970) and, where it belongs to a moment of training, `policy_steps`
and beside them `env_steps`, the actions among those (rlcore/train/collect.py):

    start       run_id, algo, env_id, seed             once
    resume      policy_steps                           a later process continued from that checkpoint
    baseline    mean, std, ci95, episodes              the random policy
    metrics     policy_steps, values {name: number}    one window of metric.log_every
    evaluation  policy_steps, final, greedy {mean, std, ci95, episodes}, stochastic {...} (final only)
                metrics and evaluations while training: wall_s, cpu_s: seconds so far (metric.disable_timer: none)
    checkpoint  policy_steps, path, digest of the learning state, tensors (rlcore.store.compare.tensor_digests)
    registered  name, version, aliases
    end         status (finished, stopped_early, dry_run, pruned, interrupted, failed, died), policy_steps, reason

After a kill the same point may be written twice; readers keep the first of each (kind, policy_steps, final): training
is exact, so both say the same but for times. A final evaluation over another number of episodes is another point.

Earlier versions wrote `env_steps` alone, but for checkpoints. There readers get the policy steps of the checkpoint at
these env steps, which every evaluation has, and elsewhere the env steps in their stead, a few in a hundred less.

What a kill may leave at the end, a part of a line, is dropped. A line in the middle that is no event is the disk's
doing: it is skipped, and said with its number. A checkpoint keeps how many points the log had, so that a resumed run
tells how many of them are lost. Nothing that is learned hangs on it: the state, with the evaluations
that early stopping looks at, lies in the checkpoints.
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

# What readers rely on; a line without it is no event.
FIELDS: dict[str, dict[str, type]] = {
    "metrics": {"policy_steps": int, "values": dict},
    "evaluation": {"policy_steps": int, "final": bool, "greedy": dict},  # with a mean
    "checkpoint": {"policy_steps": int},
    "resume": {"policy_steps": int},
    "end": {"status": str},
}
COMPLETE = ("finished", "stopped_early", "dry_run")  # statuses of a training that came to its end
MOST_STEPS = 2**63 - 1
log = logging.getLogger(__name__)
AnyEvent = TypeVar("AnyEvent", bound=Mapping[str, Any])


def last_event(events: Iterable[AnyEvent], kind: str, **fields: Any) -> AnyEvent | None:
    """The last event of a kind with these values, or None."""
    found = [e for e in events if e["kind"] == kind and all(e.get(k) == v for k, v in fields.items())]
    return found[-1] if found else None


def ending(events: Iterable[AnyEvent], ended: AnyEvent | None = None) -> AnyEvent | None:
    """Event that ended training: the `end` that holds; None where it goes on, or its process is gone without a word.

    A complete run whose last stages are done again starts a trainer, which says `resume` and trains nothing: it stays
    complete until there are metrics beyond its end. `ended` is the answer to the events before these.
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
    """Appends events to one file; several processes may.

    Args:
        path: `events.jsonl`; created on the first event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Write one event.

        What is rare is durable on return. Metrics are the operating system's, so that a kill loses none; `sync` makes
        them durable.

        Args:
            kind: of the table above.
            **fields: its values, without NaN or infinity.

        Returns:
            The event.

        Raises:
            DiskFault: the disk refused. A part of the line that was written is cut off before the next event.
        """
        event = {"kind": kind, "time": round(time.time(), 3), **fields}
        line = json.dumps(event, allow_nan=False) + "\n"
        try:
            make_directory(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # another's line half-written must not look torn
                size = self._mend(descriptor)
                self._write(descriptor, line.encode())
                if kind != "metrics":
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                sync_directory(self.path.parent)
        except OSError as error:
            raise DiskFault(f"{self.path}: no event can be written ({error.strerror or error})") from error
        return event

    def sync(self) -> None:
        """Make all events so far durable: before a checkpoint, from which nobody will measure them again."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DiskFault(f"{self.path}: no event can be written ({error.strerror})") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise DiskFault(f"{self.path}: events cannot be made durable ({error.strerror})") from error
        finally:
            os.close(descriptor)

    @staticmethod
    def _mend(descriptor: int) -> int:
        """Cut off a torn last line; the size that is left."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = os.pread(descriptor, size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
        return size

    @staticmethod
    def _write(descriptor: int, line: bytes) -> None:
        while line:  # a disk that is getting full takes a part, and refuses the next
            line = line[os.write(descriptor, line) :]


class Steps:
    """Set of step numbers in 8 bytes each, made for steps that mostly come in ascending order."""

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
    """The events of a log in order, each point of training once, a torn last line dropped."""
    return EventReader(path).read()


class EventReader:
    """Reads a log that grows: each `read` gives what has come since the one before, as `read_events` gives the whole.

    Args:
        path: `events.jsonl`; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset, self._lines = 0, 0  # bytes and lines that are read
        self._seen = {"metrics": Steps(), "evaluation": Steps()}
        self._judged: tuple[Any, ...] | None = None
        self._moments: dict[Any, int] = {}  # env steps -> policy steps, of checkpoints

    def read(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the events of the lines that are whole by now, or that begin before the byte `until`.

        Lines are read from the disk as they are asked for.
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
        """Tell whether an event says what an earlier one has said."""
        if event["kind"] == "evaluation" and event["final"]:
            # Against the last one alone: asked for 100, 1,000 and again 100 episodes, the last 100 count.
            before, self._judged = self._judged, (event["policy_steps"], event["greedy"].get("episodes"))
            return self._judged == before
        seen = self._seen.get(event["kind"])
        return seen is not None and not seen.add(event["policy_steps"])


def _event(line: bytes, moments: dict[Any, int]) -> dict[str, Any] | None:
    """The event that a line is, or None; `moments` has the checkpoints before it, and gets one that it tells of."""
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


@functools.cache  # a log is read many times in a process
def _tell(path: Path, number: int) -> None:
    log.warning("%s: line %d is damaged: no event can be read from it, and it is left out", path, number)

"""The event log: append-only JSON lines, the truth that MLflow, TensorBoard and the pictures are made from.

Kinds, each with `kind` and `time` (seconds since 1970) and, where it belongs to a moment of training, `env_steps`:

    start       run_id, algo, env_id, seed             once
    resume      env_steps                              a later process continued from that checkpoint
    baseline    mean, std, ci95, episodes              the random policy
    metrics     env_steps, values {name: number}       one window of metric.log_every
    evaluation  env_steps, final, greedy {mean, std, ci95, episodes}, stochastic {...} (final only)
    checkpoint  env_steps, path, digest
    registered  name, version, aliases
    end         status (finished, stopped_early, dry_run, interrupted, failed), env_steps, reason

After a kill the same point may be written twice; readers keep the first of each (kind, env_steps, final): training is
exact, so both say the same but for times. A final evaluation over another number of episodes is another point.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to one file.

    Args:
        path: `events.jsonl`; created on the first event. A torn last line (from a kill) is cut off on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Write one event and hand it to the operating system at once; returns it."""
        event = {"kind": kind, "time": round(time.time(), 3), **fields}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(event, allow_nan=False) + "\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._mend(descriptor)
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        return event

    @staticmethod
    def _mend(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            whole = os.pread(descriptor, size, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, whole)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a log in order, each point of training once, a torn last line dropped."""
    if not path.exists():
        return
    seen: set[tuple[Any, ...]] = set()
    judged: tuple[Any, ...] | None = None
    for line in path.read_bytes().split(b"\n")[:-1]:
        event = json.loads(line)
        if event["kind"] == "evaluation" and event.get("final"):
            # Against the last one alone: asked for 100, 1,000 and again 100 episodes, the last 100 count.
            before, judged = judged, (event["env_steps"], event.get("greedy", {}).get("episodes"))
            if judged == before:
                continue
        elif event["kind"] in ("metrics", "evaluation"):
            point = (event["kind"], event["env_steps"])
            if point in seen:
                continue
            seen.add(point)
        yield event

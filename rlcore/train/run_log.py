"""Event log of a run that is trained: it counts its events, and warns of those that a resumed run cannot find."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.store.events import EventLog, read_events
from rlcore.store.history import history
from rlcore.store.retry import retry

log = logging.getLogger(__name__)


class RunLog(EventLog):
    """Event log of a run.

    Args:
        path: path of `events.jsonl`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.counts = {"metrics": 0, "evaluation": 0}  # number of these events up to now, also in checkpoints

    def note(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Append an event as `append`, but count it, and repeat a write that fails because the disk is full."""
        event = retry(lambda: self.append(kind, **fields))
        if kind in self.counts:
            self.counts[kind] += 1
        return event

    def warn_of_lost(self, logged: Mapping[str, int], policy_steps: int) -> None:
        """Warn if the log has lost events, for example because of a disk fault, and restore `counts`.

        Training resumes after the checkpoint, so lost events are not logged again.

        Args:
            logged: `counts` when the checkpoint was written.
            policy_steps: policy steps of the checkpoint.
        """
        evaluated = [e["policy_steps"] for e in history(self.path).evaluations if e["policy_steps"] <= policy_steps]
        metrics = (e for e in read_events(self.path) if e["kind"] == "metrics" and e["policy_steps"] <= policy_steps)
        present = {"metrics": sum(1 for _ in metrics), "evaluation": len(evaluated)}
        after = evaluated.count(policy_steps)  # the evaluation of this checkpoint was logged after it
        lost = {"metrics": logged.get("metrics", 0) - present["metrics"]}
        lost["evaluation"] = logged.get("evaluation", 0) - (len(evaluated) - after)
        lost = {kind: max(0, count) for kind, count in lost.items()}
        self.counts = {kind: present[kind] + lost[kind] for kind in present}
        if any(lost.values()):
            log.warning(
                "%s was cut or damaged: %d metrics events and %d evaluations up to policy step %s are lost and not "
                "repeated; to recover them, stop the run, restore the file from a backup, and resume",
                self.path,
                lost["metrics"],
                lost["evaluation"],
                f"{policy_steps:,}",
            )

"""Progress of many trainings at once: one line for all of them, and a line for each that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.cli.progress import Line, Progress
from flows.report.sentences import describe, duration, number
from flows.runs.listeners import listening

SHOWN = 4  # trainings in the line


@contextmanager
def following_jobs(doing: str, total: int, done: int = 0, best: float | None = None) -> Iterator[None]:
    """Show what is told of jobs inside the `with`: `doing` names them, `done` of all have ended before."""
    progress = Jobs(doing, total, done, best)
    try:
        with listening(progress.hear):
            yield
    finally:
        progress.close()


class Jobs(Progress):
    """Shows how many of so many trainings have ended, how far those at work are, and the best so far."""

    def __init__(self, doing: str, total: int, done: int = 0, best: float | None = None, **options: Any) -> None:
        super().__init__(total, **options)
        self._doing, self._total, self._done, self._begun_with = doing, total, done, done
        self._running: dict[str, tuple[float, float | None]] = {}
        self._best = best
        self._since = self._clock()

    def hear(self, kind: str, facts: dict[str, Any]) -> None:
        """What is told of jobs; safe to call from several threads."""
        with self._lock:
            if kind == "job" and "policy_steps" in facts:
                self._running[facts["label"]] = (facts["policy_steps"] / facts["total_steps"], facts["return"])
                self._draw()
            elif kind == "job":
                self.note(str(describe(kind, facts)))
            elif kind == "ended":
                self._running.pop(facts["label"], None)
                if (sentence := describe(kind, facts)) is not None:
                    self.note(sentence)
                self._done += 1
                self._draw(now=True)
            elif kind == "trial":
                if facts["state"] == "complete":
                    self._best = facts["value"] if self._best is None else max(self._best, facts["value"])
                self.note(str(describe(kind, facts)))
            elif kind == "phase":
                self._doing, self._total, self._done, self._begun_with = facts["doing"], facts["total"], 0, 0
                self._running, self._best, self._since = {}, None, self._clock()
            elif kind == "stage":
                self.note(facts["doing"])

    def _draw(self, now: bool = False) -> None:
        share = min(1.0, (self._done + sum(part for part, _ in self._running.values())) / max(1, self._total))
        parts = [f"{self._done}/{self._total}"]
        if self._best is not None:
            parts.append(f"best {number(self._best)}")
        for label, (part, score) in list(self._running.items())[:SHOWN]:
            said = f" {number(score)}" if score is not None else ""
            parts.append(f"{label.partition(':')[0].removeprefix('trial ')}: {part:.0%}{said}")
        took, made = self._clock() - self._since, share - self._begun_with / max(1, self._total)
        parts.append(f"ETA {duration((1 - share) * took / made)}" if made > 0 else "ETA -")
        self._training = Line(self._doing, share, parts)
        if now or self._due(took):
            self._write(self._training)

"""Progress of several concurrent trainings: a common progress line, and one line of text when a training ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.cli.progress import SETTLED, Line, Progress
from flows.report.sentences import describe, duration, number
from flows.runs.listeners import subscribe

SHOWN = 4  # trainings shown in the progress line


@contextmanager
def show_jobs(doing: str, total: int, done: int = 0, best: float | None = None) -> Iterator[None]:
    """Context manager that shows the progress of jobs, which are the trainings of a sweep or of a group of runs.

    Args:
        doing: name of the jobs, for example "trials".
        total: number of jobs.
        done: number of jobs that ended before this call, for example before a sweep was resumed.
        best: best result of the jobs that have already ended; None if there is none.

    Yields:
        None.
    """
    progress = JobLines(doing, total, done, best)
    try:
        with subscribe(progress.on_event):
            yield
    finally:
        progress.close()


class JobLines(Progress):
    """Progress line of several trainings.

    It shows how many trainings have ended, the progress of the running ones, and the best result so far.
    """

    def __init__(self, doing: str, total: int, done: int = 0, best: float | None = None, **options: Any) -> None:
        super().__init__(total, **options)
        self._best = best
        self._begin(doing, total, done)

    def _begin(self, doing: str, total: int, done: int) -> None:
        self._doing, self._total, self._done, self._since = doing, total, done, self._clock()
        self._running: dict[str, tuple[float, float | None]] = {}
        # The ETA uses the work seen by this process, in trainings, and the time since the first of it. Work from
        # before a resume and the start-up time of Prefect and the workers are excluded.
        self._first: dict[str, float] = {}
        self._ended = 0.0
        self._seen_since: float | None = None

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Update the display with an event, such as the progress or the end of a training; thread-safe."""
        with self._lock:
            if kind == "job" and "policy_steps" in facts:
                part = facts["policy_steps"] / facts["total_steps"]
                self._running[facts["label"]] = (part, facts["return"])
                self._first.setdefault(facts["label"], part)
                if self._seen_since is None:
                    self._seen_since = self._clock()
                self._draw()
            elif kind == "job":
                self.note(str(describe(kind, facts)))
            elif kind == "ended":
                self._running.pop(facts["label"], None)
                if (sentence := describe(kind, facts)) is not None:
                    self.note(sentence)
                self._done += 1
                self._ended += 1 - self._first.pop(facts["label"], 0.0)
                self._draw(now=True)
            elif kind == "trial":
                if facts["state"] == "complete":
                    self._best = facts["value"] if self._best is None else max(self._best, facts["value"])
                self.note(str(describe(kind, facts)))
            elif kind == "phase":
                self._best = None
                self._begin(facts["doing"], facts["total"], 0)
            elif kind == "stage":
                self.note(facts["doing"])

    def _draw(self, now: bool = False) -> None:
        through = self._done + sum(part for part, _ in self._running.values())
        share = min(1.0, through / max(1, self._total))
        parts = [f"{self._done}/{self._total}"]
        if self._best is not None:
            parts.append(f"best {number(self._best)}")
        for label, (part, score) in list(self._running.items())[:SHOWN]:
            score_text = f" {number(score)}" if score is not None else ""
            parts.append(f"{label.partition(':')[0].removeprefix('trial ')}: {part:.0%}{score_text}")
        parts.append(f"ETA {self._eta(max(0.0, self._total - through))}")
        self._training = Line(self._doing, share, parts)
        if now or self._due(self._clock() - self._since):
            self._write(self._training)

    def _eta(self, left: float) -> str:
        """Return the expected time for `left` further trainings, based on the average speed of the trainings so far.

        The result is text such as "1:30", or "-" if the time cannot be estimated yet.
        """
        took = 0.0 if self._seen_since is None else self._clock() - self._seen_since
        seen = self._ended + sum(part - self._first[label] for label, (part, _) in self._running.items())
        return duration(left * took / seen) if took >= SETTLED and seen > 0 else "-"

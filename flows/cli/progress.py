"""Progress of long work: a line that is updated in place on a terminal; in a file, a new line at intervals.

rich determines colors, width and characters. `rich.progress` is not used; docs/decisions.md gives the reason.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TextIO

from rich.text import Text

from flows.report.sentences import describe, duration, number
from flows.report.terminal import console
from flows.runs.listeners import subscribe
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import printable

REDRAW_EVERY = 0.1  # s between two updates on a terminal
LINE_EVERY = 10.0  # s between two lines in a file
LINE_SHARE = 0.05  # fraction of the budget, or of the elapsed time, between two lines in a file
MEMORY = 20.0  # s, time constant of the average rate for the ETA; longer than an evaluation, to smooth those out
SETTLED = 1.0  # s of training before the ETA is shown
LONGEST_BAR, SHORTEST_BAR = 16, 5  # columns
SHOWN = 4  # concurrent trainings shown in the line
CLEAR = "\r\x1b[K"


def show_progress(run: RunDirectory) -> AbstractContextManager[None]:
    """Context manager that shows the progress of a run: a progress line, and a line for each event of the run."""
    return _show(Progress(run.read_config()["algo"]["total_steps"]))


def show_jobs(doing: str, total: int, done: int = 0, best: float | None = None) -> AbstractContextManager[None]:
    """Context manager that shows the progress of jobs, which are the trainings of a sweep or of a group of runs.

    Args:
        doing: name of the jobs, for example "trials".
        total: number of jobs.
        done: number of jobs that ended before this call, for example before a sweep was resumed.
        best: best result of the jobs that have already ended; None if there is none.

    Returns:
        The context manager.
    """
    return _show(JobLines(doing, total, done, best))


@contextmanager
def _show(progress: Progress) -> Iterator[None]:
    try:
        with subscribe(progress.on_event):
            yield
    finally:
        progress.close()


class ProgressLine(NamedTuple):
    """Content of a progress line.

    Attributes:
        doing: name of the work, such as "train".
        share: completed fraction of the work, 0 to 1.
        parts: further texts, such as the speed; the last one is usually the ETA (expected remaining time).
    """

    doing: str
    share: float
    parts: list[str]


class Progress:
    """Progress line of training (to `total_steps` policy steps), a long update, an evaluation or a comparison.

    On a terminal the line is updated in place. Otherwise new lines without control characters are written at intervals
    of 10 s, or of 5 % of the elapsed time if that is longer; training also writes a line after every 5 % of its policy
    steps. If the terminal or pipe is closed, the output stops and the training continues. Thread-safe.
    """

    def __init__(
        self, total_steps: int | None, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_steps = total_steps
        self._console = console(sys.stderr if stream is None else stream)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = clock
        self._lock = threading.RLock()
        self._training: ProgressLine | None = None
        self._work: ProgressLine | None = None  # work other than training
        self._began = (0.0, 0)  # time at which that work began, and how much of it was already done
        self._rate: float | None = None  # recent policy steps per second
        self._learns_since: float | None = 0.0  # elapsed seconds at the first gradient step; None before it
        self._last = (0, 0.0)  # policy steps and elapsed seconds at the last update
        self._written = -math.inf  # time of the last written line
        self._steps_written = 0  # policy steps in the last line of training
        self._closed = False

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        """Update the display with an event of a run, such as its progress or an evaluation."""
        if kind == "progress":
            rate = facts["policy_steps"] / facts["elapsed"] if facts["elapsed"] > 0 else 0.0
            self.total_steps = facts["total_steps"]
            self.update(facts["policy_steps"], facts["return"], rate, facts["elapsed"], facts["updates"])
        elif kind == "work":
            self.work(facts["doing"], facts["done"], facts["total"], facts["unit"])
        elif kind == "interrupted":
            self.close(describe(kind, facts))
        elif (sentence := describe(kind, facts)) is not None:
            self.note(sentence)

    def update(
        self, steps: int, episode_return: float | None, steps_per_second: float, elapsed: float, updates: int
    ) -> None:
        """Update the progress of training; the line is redrawn only if enough time has passed.

        Args:
            steps: policy steps so far.
            episode_return: mean return of recent episodes; None if no episode has ended yet.
            steps_per_second: policy steps per second to show.
            elapsed: seconds of training, including those before a resume.
            updates: gradient steps so far. No ETA is shown before the first one.
        """
        with self._lock:
            self._follow_rate(steps, elapsed, updates)
            total = self.total_steps
            parts = [
                f"return {'-' if episode_return is None else number(episode_return)}",
                f"{steps_per_second:,.0f} steps/s",
            ]
            if total is None:  # until a stop condition holds
                finished, share = False, 0.0
                parts = [f"{steps:,} steps", *parts, duration(elapsed)]
            else:
                finished, share = steps >= total, min(1.0, steps / total)
                settled = self._learns_since is not None and elapsed - self._learns_since >= SETTLED
                eta = duration((total - steps) / self._rate) if settled and self._rate else "-"
                begin = [f"{steps:,}/{total:,}", f"{min(100, 100 * steps // total)}%"]
                parts = [*begin, *parts, f"took {duration(elapsed)}" if finished else f"ETA {eta}"]
            self._training, self._work = ProgressLine("train", share, parts), None
            much = not self._live and total is not None and steps - self._steps_written >= LINE_SHARE * total
            if finished or much or self._due(elapsed):
                self._write(self._training)

    def work(self, doing: str, done: int, total: int, unit: str = "episodes") -> None:
        """Update the progress of work other than training, such as an evaluation.

        The line of this work replaces the line of training until the work is done.
        """
        with self._lock:
            now = self._clock()
            if self._work is None or self._work.doing != doing:
                self._began = (now, done)
            took, advanced = now - self._began[0], done - self._began[1]
            parts = [f"{done:,}/{total:,} {unit}"]
            if advanced > 0:
                parts.append(f"ETA {duration((total - done) * took / advanced)}")
            self._work = ProgressLine(doing, done / max(1, total), parts)
            if done >= total:
                self._work = None
                self._redraw()
            elif self._due(took) and (self._live or took >= LINE_EVERY):
                self._write(self._work)

    def note(self, text: str) -> None:
        """Write a separate line above the progress line, for example the result of an evaluation."""
        with self._lock:
            self._emit(f"{CLEAR if self._live else ''}{printable(text)}\n")
            self._redraw()

    def close(self, text: str | None = None) -> None:
        """Write the last state of training, then `text` on a line of its own, and stop drawing."""
        with self._lock:
            if self._training is not None and self._last[0] != self._steps_written:
                self._write(self._training)
            self._work = None
            self._redraw()
            if self._live and self._training is not None:
                self._emit("\n")
            if text is not None:
                self._emit(f"{printable(text)}\n")
            self._closed = True

    def _follow_rate(self, steps: int, elapsed: float, updates: int) -> None:
        """Update the moving average of policy steps per second, from which the ETA is computed.

        Time before the first gradient step is ignored, because the training is faster without gradient steps. The time
        of evaluations is included.
        """
        seconds = elapsed - self._last[1]
        if self._learns_since is None or not updates:  # part of this interval was without gradient steps
            self._learns_since = elapsed if updates else None
        elif seconds > 0:
            rate = (steps - self._last[0]) / seconds
            if self._rate is None:
                self._rate = rate
            self._rate += (1 - math.exp(-seconds / min(MEMORY, elapsed - self._learns_since))) * (rate - self._rate)
        self._last = (steps, elapsed)

    def _due(self, so_far: float) -> bool:
        return self._clock() - self._written >= (REDRAW_EVERY if self._live else max(LINE_EVERY, LINE_SHARE * so_far))

    def _write(self, line: ProgressLine) -> None:
        self._written = self._clock()
        if line is self._training:
            self._steps_written = self._last[0]
        if self._live:
            self._redraw()
        else:
            self._emit(printable("  ".join([line.doing, *line.parts])) + "\n")

    def _redraw(self) -> None:
        """Redraw the line on a terminal."""
        if self._live:
            self._emit(CLEAR, self._work or self._training)

    def _paint(self, line: ProgressLine) -> str:
        """Return a progress line that fits into the terminal.

        If necessary, the bar is shortened or omitted first, then speed, return, ETA and percentage are omitted.
        """
        width = self._console.width - 1  # a full last column would wrap
        doing, *shown = parts = [printable(part) for part in (line.doing, *line.parts)]
        text = Text("  ".join(parts))
        bar = min(LONGEST_BAR, width - len(text) - 2)
        if bar >= SHORTEST_BAR:
            full, empty = "=-" if self._console.options.ascii_only else "━─"
            done = round(bar * line.share)
            drawn = ((full * done, "cyan"), (empty * (bar - done), "dim"))
            text = Text.assemble(f"{doing}  ", *drawn, "  ", "  ".join(shown))
        while len(text) > width and len(parts) > 2:
            parts.pop(-2 if len(parts) > 4 else -1)
            text = Text("  ".join(parts))
        with self._console.capture() as painted:
            self._console.print(text[:width], end="", soft_wrap=True)
        return painted.get()

    def _emit(self, text: str, line: ProgressLine | None = None) -> None:
        try:
            if not self._closed:
                self._console.file.write(text + (self._paint(line) if line else ""))
                self._console.file.flush()
        except (OSError, ValueError):  # the terminal or pipe is closed, which must not end the training
            self._closed = True


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
                part = facts["policy_steps"] / facts["total_steps"] if facts["total_steps"] else 0.0
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
            elif kind in ("stage", "interrupted"):
                self.note(facts["doing"])

    def _draw(self, now: bool = False) -> None:
        through = self._done + sum(part for part, _ in self._running.values())
        share = min(1.0, through / max(1, self._total))
        parts = [f"{self._done}/{self._total}"]
        if self._best is not None:
            parts.append(f"best {number(self._best)}")
        for label, (part, score) in list(self._running.items())[:SHOWN]:
            score_text = f" {number(score)}" if score is not None else ""
            # `score` is the return of training episodes; next to "final evaluation" it would look like its result.
            doing = f"{part:.0%}{score_text}" if part < 1 else "final evaluation"
            parts.append(f"{label.partition(':')[0].removeprefix('trial ')}: {doing}")
        parts.append(f"ETA {self._eta(max(0.0, self._total - through))}")
        self._training = ProgressLine(self._doing, share, parts)
        if now or self._due(self._clock() - self._since):
            self._write(self._training)

    def _eta(self, left: float) -> str:
        """Return the expected time for `left` further trainings, based on the average speed of the trainings so far.

        The result is text such as "1:30", or "-" if the time cannot be estimated: no training has progressed yet, or
        all that is left are final evaluations.
        """
        took = 0.0 if self._seen_since is None else self._clock() - self._seen_since
        seen = self._ended + sum(part - self._first[label] for label, (part, _) in self._running.items())
        return duration(left * took / seen) if took >= SETTLED and seen > 0 and (left > 0 or not self._running) else "-"

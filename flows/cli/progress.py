"""The progress line: one line rewritten in place on a terminal, plain lines now and then in a file."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from flows.report.sentences import duration

REDRAW_EVERY = 0.1  # s between two drawings on a terminal
LINE_EVERY = 10.0  # s between two lines in a file
LINE_SHARE = 0.05  # part of the budget, or of the time so far, that is worth a line in a file
MEMORY = 20.0  # s over which the rate behind the ETA forgets: longer than an evaluation, so that those do not shake it
BAR = 16
CLEAR = "\r\x1b[K"
DIM, CYAN, PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class Progress:
    """Shows how far training is: steps, share, mean return, speed, time left.

    On a terminal the line is rewritten in place; elsewhere whole lines without control characters are written, one for
    each 5 % or 10 s, and in long runs one for each twentieth of the time so far. Safe to call from several threads.

    Args:
        total_steps: env steps at which training is done.
        stream: where to write; None = the standard error of the moment.
        clock: seconds, only for deciding when to write.
    """

    def __init__(
        self, total_steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_steps = max(1, total_steps)
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.colour = self.live and not os.environ.get("NO_COLOR")
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._last: tuple[int, float] | None = None  # env steps and elapsed seconds of the last update
        self._parts: list[str] = []
        self._written = (-math.inf, 0)  # when, and at how many env steps
        self._shown = True  # the parts are on the screen or in the file
        self._closed = False

    def update(self, env_steps: int, episode_return: float | None, steps_per_second: float, elapsed: float) -> None:
        """Tell where training stands; draws only when it is time.

        Args:
            env_steps: taken so far.
            episode_return: mean over recent episodes; None before the first has ended.
            steps_per_second: env steps per second, as shown.
            elapsed: seconds of training so far, those before a resume included.
        """
        with self._lock:
            if self._closed:
                return
            self._smooth(env_steps, steps_per_second, elapsed)
            done = env_steps >= self.total_steps
            left = max(0, self.total_steps - env_steps)
            end = f"took {duration(elapsed)}" if done else f"ETA {self._eta(left)}"
            self._parts = [
                f"{env_steps:,}/{self.total_steps:,}",
                f"{min(100, 100 * env_steps // self.total_steps):d}%",
                f"return {'-' if episode_return is None else format(episode_return, '.1f')}",
                f"{steps_per_second:,.0f} steps/s",
                end,
            ]
            self._shown = False
            if done or self._due(env_steps):
                self._write(env_steps)

    def note(self, text: str) -> None:
        """Write a line of its own above the progress line: an evaluation, a checkpoint.

        Args:
            text: one line.
        """
        with self._lock:
            if self.live and not self._closed:
                self._emit(f"{CLEAR}{text}\n")
                if self._parts:
                    self._draw()
            else:
                self._emit(f"{text}\n")

    def close(self) -> None:
        """Show the last state, whatever the time, and leave the line; further updates are not shown."""
        with self._lock:
            if self._closed:
                return
            if self._parts and not self._shown:
                self._write(self._last[0] if self._last else 0)
            if self.live and self._parts:
                self._emit("\n")
            self._closed = True

    def _smooth(self, env_steps: int, steps_per_second: float, elapsed: float) -> None:
        """Follow the rate, forgetting exponentially; seconds without steps (evaluations) count too."""
        if self._last is None or self._rate is None:
            self._rate = steps_per_second
        elif elapsed > self._last[1]:
            seconds = elapsed - self._last[1]
            rate = (env_steps - self._last[0]) / seconds
            self._rate += (1 - math.exp(-seconds / MEMORY)) * (rate - self._rate)
        self._last = (env_steps, elapsed)

    def _eta(self, left: int) -> str:
        return duration(left / self._rate) if self._rate and self._rate > 0 else "-"

    def _due(self, env_steps: int) -> bool:
        now = self._clock()
        since = now - self._written[0]
        if self.live:
            return since >= REDRAW_EVERY
        share = (env_steps - self._written[1]) / self.total_steps
        return share >= LINE_SHARE or since >= max(LINE_EVERY, LINE_SHARE * (now - self._start))

    def _write(self, env_steps: int) -> None:
        if self._shown:
            return
        self._written = (self._clock(), env_steps)
        if self.live:
            self._draw()
        else:
            self._emit("  ".join(["train", *self._parts]) + "\n")
            self._shown = True

    def _draw(self) -> None:
        """Rewrite the line, leaving out what does not fit: the bar, then speed, return, time left, share."""
        width = max(0, self._width() - 1)  # a full last column would wrap
        shown = ["train", *self._parts]
        if len("  ".join(shown)) + BAR + 2 <= width:
            line = "  ".join([shown[0], self._bar(), *shown[1:]])
        else:
            for index in (4, 3, 3, 2):
                if len("  ".join(shown)) > width:
                    shown.pop(index)
            line = "  ".join(shown)[:width]
        self._emit(CLEAR + line)
        self._shown = True

    def _bar(self) -> str:
        done = round(BAR * min(1.0, (self._last[0] if self._last else 0) / self.total_steps))
        full, empty = ("━", "─") if _can_write(self.stream, "━─") else ("=", "-")
        if self.colour:
            return f"{CYAN}{full * done}{PLAIN}{DIM}{empty * (BAR - done)}{PLAIN}"
        return full * done + empty * (BAR - done)

    def _width(self) -> int:
        if not os.environ.get("COLUMNS"):
            try:
                return os.get_terminal_size(self.stream.fileno()).columns or 80
            except (OSError, ValueError, AttributeError):
                return shutil.get_terminal_size().columns
        return shutil.get_terminal_size().columns

    def _emit(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal or pipe is gone: training is not to die of it
            self._closed = True


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

"""A time limit on the environments of this process: a thread that looks now and then, and costs a step nothing.

The thread asks whether the call of an environment that it saw last time is still going on; when it has seen it often
enough it signals the main thread, whose handler raises `Overdue` inside the environment: in a loop, a sleep, a read.
Looks are counted and not seconds, so a process that was paused (SIGSTOP) wakes up with its time left. Code in C that
never gives back the interpreter lock stops this thread too: then a trainer falls silent, and its driver ends it.
"""

from __future__ import annotations

import functools
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from rlcore.errors import EnvironmentLost

START_LIMIT = 120.0  # seconds to import, build and reset for the first time, or to re-simulate an episode
STEP_TIMEOUT = 60.0  # seconds, where no config says otherwise
LOOKS = 4  # in one limit
SIGNAL = signal.SIGVTALRM  # no environment that we know uses it, as some use SIGALRM


class Overdue(BaseException):
    """Raised inside an environment that takes too long; no `except Exception` of its own swallows it."""


def step_limit(config: Any) -> float:
    """Seconds for one step: `env.step_timeout`; settings of a single environment have none."""
    return getattr(config, "step_timeout", STEP_TIMEOUT)


def first_limit(step_timeout: float) -> float:
    """Seconds for building and the first reset, which may load an engine."""
    return max(step_timeout, min(START_LIMIT, 10 * step_timeout))


class Watchdog:
    """Raises `Overdue` in the main thread where a call of an environment takes longer than its limit.

    Whoever calls an environment adds 1 to `calls` before and after it: odd means that one is at work. Calls made in
    other threads cannot be interrupted and are not watched.

    Args:
        limit: seconds of one call.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.calls = 0
        self.looks = LOOKS  # after so many a call is overdue
        self.overdue = 0
        self._closed = threading.Event()
        if threading.current_thread() is threading.main_thread():
            signal.signal(SIGNAL, _on_signal)
            _WATCHDOGS.add(self)
            thread = threading.Thread(target=_look, args=(weakref.ref(self), self._closed, limit / LOOKS), daemon=True)
            thread.start()

    @contextmanager
    def patience(self, limit: float) -> Iterator[None]:
        """Allow calls inside the `with` so many seconds."""
        self.looks = max(1, round(LOOKS * limit / self.limit))
        try:
            yield
        finally:
            self.looks = LOOKS

    def call(self, function: Callable[[], Any]) -> Any:
        """The result of one call of an environment.

        Args:
            function: makes the call.

        Returns:
            What it returns.

        Raises:
            EnvironmentLost: it took too long.
        """
        self.calls += 1
        try:
            return function()
        except Overdue:
            raise EnvironmentLost(self.sentence()) from None
        finally:
            self.calls += 1

    def sentence(self) -> str:
        """What is wrong where a call was overdue."""
        return f"hung; no answer within {self.limit * self.looks / LOOKS:g} s (env.step_timeout)"

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()


_WATCHDOGS: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _look(reference: weakref.ref[Watchdog], closed: threading.Event, pause: float) -> None:
    seen, looks = 0, 0
    while not closed.wait(pause):
        watchdog = reference()
        if watchdog is None:
            return
        calls = watchdog.calls
        seen, looks = (calls, looks + 1) if calls == seen else (calls, 0)
        if calls % 2 and looks >= watchdog.looks:
            watchdog.overdue = calls
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        del watchdog  # it may be forgotten while we sleep


def _on_signal(number: int, frame: Any) -> None:
    if any(watchdog.calls == watchdog.overdue for watchdog in tuple(_WATCHDOGS)):  # and not over in the meantime
        raise Overdue


class Watched(gymnasium.Wrapper):
    """An environment whose every call is watched, for code that steps one by itself.

    Args:
        env: to be watched.
        watchdog: watches.
    """

    def __init__(self, env: gymnasium.Env, watchdog: Watchdog) -> None:
        super().__init__(env)
        self._call = watchdog.call  # a method is no state: the tier is measured as if this layer were not there

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Open an episode."""
        return self._call(functools.partial(self.env.reset, seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Take one action."""
        return self._call(functools.partial(self.env.step, action))

    def close(self) -> None:
        """Release the environment."""
        self._call(self.env.close)

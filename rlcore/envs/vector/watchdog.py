"""A time limit on the environments of this process: a thread that checks now and then, and costs a step nothing.

The thread asks whether the call of an environment that it saw last time is still going on; after enough such checks it
signals the main thread, whose handler raises `Overdue` inside the environment: in a loop, a sleep, a read. Checks are
counted and not seconds, so a process that was paused (SIGSTOP) wakes up with its time left. Code in C that never gives
back the interpreter lock stops this thread too: then a trainer falls silent, and its driver ends it.
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
CHECKS = 4  # in one limit
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
    """Raises `Overdue` in the main thread where a call of an environment takes longer than `limit` seconds.

    Whoever calls an environment adds 1 to `calls` before and after it: odd means that a call is going on. Calls made in
    other threads cannot be interrupted and have no limit.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.calls = 0
        self.checks_allowed = CHECKS
        self.overdue_call = 0
        self._closed = threading.Event()
        if threading.current_thread() is threading.main_thread():
            signal.signal(SIGNAL, _on_signal)
            _WATCHDOGS.add(self)
            arguments = (weakref.ref(self), self._closed, limit / CHECKS)
            threading.Thread(target=_check_repeatedly, args=arguments, daemon=True).start()

    @contextmanager
    def limit_to(self, seconds: float) -> Iterator[None]:
        """Another limit for the calls inside the `with`."""
        self.checks_allowed = max(1, round(CHECKS * seconds / self.limit))
        try:
            yield
        finally:
            self.checks_allowed = CHECKS

    def call(self, function: Callable[[], Any]) -> Any:
        """Result of one call of an environment; EnvironmentLost where it takes too long."""
        self.calls += 1
        try:
            return function()
        except Overdue:
            raise EnvironmentLost(self.sentence()) from None
        finally:
            self.calls += 1

    def build(self, make: Callable[[], Any]) -> Any:
        """Result of a function that builds an environment, which may load an engine; raises as `call` does."""
        with self.limit_to(first_limit(self.limit)):
            return self.call(make)

    def sentence(self) -> str:
        """Sentence on a call that was overdue."""
        return f"hung; no answer within {self.limit * self.checks_allowed / CHECKS:g} s (env.step_timeout)"

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()


_WATCHDOGS: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _check_repeatedly(reference: weakref.ref[Watchdog], closed: threading.Event, pause: float) -> None:
    seen, checks = 0, 0
    while not closed.wait(pause):
        watchdog = reference()
        if watchdog is None:
            return
        calls = watchdog.calls
        seen, checks = (calls, checks + 1) if calls == seen else (calls, 0)
        if calls % 2 and checks >= watchdog.checks_allowed:
            watchdog.overdue_call = calls
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        del watchdog  # it may be forgotten while this thread sleeps


def _on_signal(number: int, frame: Any) -> None:
    if any(watchdog.calls == watchdog.overdue_call for watchdog in tuple(_WATCHDOGS)):  # and not over in the meantime
        raise Overdue


class StepTimeout(gymnasium.Wrapper):
    """An environment whose every call has a watchdog's time limit, for code that steps one environment by itself."""

    def __init__(self, env: gymnasium.Env, watchdog: Watchdog) -> None:
        super().__init__(env)
        self._call = watchdog.call  # a method is no state: the tier is measured as if this layer were not there

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Open an episode."""
        return self._call(functools.partial(self.env.reset, seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Take one action."""
        return self._call(functools.partial(self.env.step, action))

    def render(self) -> Any:
        """Draw the environment."""
        return self._call(self.env.render)

    def close(self) -> None:
        """Release the environment."""
        self._call(self.env.close)

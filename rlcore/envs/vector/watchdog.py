"""Watchdog: a thread that limits the duration of calls of environments in this process, without a cost per step.

The thread checks at regular intervals if the call that was running at the last check is still running. If several
checks in a row find the same call, the thread sends a signal to the main thread. The signal handler raises
`StepTimeout` inside the environment's code, for example in a loop, a sleep or a read. The thread counts checks instead
of seconds, so that time in which the process is paused (SIGSTOP) does not count.

C code that never releases Python's interpreter lock blocks the watchdog too. The trainer then reports no more progress,
and the process that started it ends it.
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

from rlcore.errors import EnvironmentFault, EnvironmentLost
from rlcore.user_code import is_failure, spell_error

START_LIMIT = 120.0  # seconds for import, construction and first reset, or for the start of a replay
STEP_TIMEOUT = 60.0  # seconds; default of `env.step_timeout`
CHECKS = 4  # checks per time limit
SIGNAL = signal.SIGVTALRM  # not used by any environment that we know; some use SIGALRM


class StepTimeout(BaseException):
    """Exception that the watchdog raises inside the code of an environment that takes too long.

    It is a BaseException, so that `except Exception` in the environment's code does not catch it.
    """


def step_limit(config: Any) -> float:
    """Return the time limit of one step in seconds.

    The limit is `env.step_timeout` if `config` is the config group `env`. It is the default if `config` is
    `EnvSettings`, which does not have this key.
    """
    return getattr(config, "step_timeout", STEP_TIMEOUT)


def first_limit(step_timeout: float) -> float:
    """Return the time limit in seconds for the construction and the first reset of an environment.

    It is ten times `step_timeout` (the limit of one step), because game and physics engines are loaded. However, it is
    at most 120 s, unless `step_timeout` is longer.
    """
    return max(step_timeout, min(START_LIMIT, 10 * step_timeout))


class Watchdog:
    """Watchdog that raises `StepTimeout` in the main thread if an environment's call takes longer than a time limit.

    The code that calls an environment adds 1 to `calls` before and after each call. An odd number therefore means that
    a call is running. A watchdog that is created in another thread than the main thread does nothing, because Python
    runs signal handlers only in the main thread. `limit` is the time limit in seconds.
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
        """Set the time limit of calls to `seconds` inside the context."""
        self.checks_allowed = max(1, round(CHECKS * seconds / self.limit))
        try:
            yield
        finally:
            self.checks_allowed = CHECKS

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a method of an environment and return its result; raise EnvironmentLost if the call takes too long."""
        self.calls += 1
        try:
            return function()
        except StepTimeout:
            raise EnvironmentLost(self.sentence()) from None
        finally:
            self.calls += 1

    def build(self, make: Callable[[], Any]) -> Any:
        """Call a function that builds an environment and return its result.

        The time limit is the one of `first_limit`. Raise EnvironmentLost if the call takes too long.
        """
        with self.limit_to(first_limit(self.limit)):
            return self.call(make)

    def sentence(self) -> str:
        """Return the error message for a call that took too long."""
        return f"hung; no answer within {self.limit * self.checks_allowed / CHECKS:g} s (env.step_timeout)"

    def close(self) -> None:
        """Stop the thread."""
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
        del watchdog  # allow garbage collection while this thread sleeps


def _on_signal(number: int, frame: Any) -> None:
    if any(watchdog.calls == watchdog.overdue_call for watchdog in tuple(_WATCHDOGS)):  # the call is still running
        raise StepTimeout


class StepTimeLimit(gymnasium.Wrapper):
    """Wrapper that applies a watchdog's time limit to every call of one environment."""

    def __init__(self, env: gymnasium.Env, watchdog: Watchdog) -> None:
        super().__init__(env)
        # A method is not part of a saved state, so this wrapper does not change the measured tier.
        self._call = watchdog.call

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        return self._call(functools.partial(self.env.reset, seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Take one action."""
        return self._call(functools.partial(self.env.step, action))

    def render(self) -> Any:
        """Render the environment."""
        return self._call(self.env.render)

    def close(self) -> None:
        """Close the environment. Raises EnvironmentFault if it cannot be closed."""
        try:
            self._call(self.env.close)
        except EnvironmentFault:
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise EnvironmentFault(f"close raised {spell_error(error)}") from error

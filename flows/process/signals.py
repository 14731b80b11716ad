"""Signal handling of commands: Ctrl-C (SIGINT), SIGTERM, and a closed terminal (SIGHUP).

The first signal raises an exception, so that resources are closed and the trainer writes a checkpoint. The process ends
immediately at a second signal, or 24 s (LIMIT) after the first one. Child processes end with it
(rlcore.system.lifeline). The run can be resumed.
"""

from __future__ import annotations

import _thread
import atexit
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from rlcore.system.printable import printable

LIMIT = 24.0  # seconds from the first signal until the process ends in any case
# Seconds within which a second signal is ignored: `timeout` and others signal both the process and its process group.
REPEAT = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CODE = 130
FAREWELL = "shepherd: interrupted"


class TrainingInterrupted(KeyboardInterrupt):
    """Exception that is raised when a signal interrupts training. The command then exits with code 130.

    The state of the training is saved. A subclass is used instead of KeyboardInterrupt, because of an effect of `exec`,
    which dataclasses and named tuples use: if a KeyboardInterrupt passes through it, Python remembers this and later
    ends by SIGINT instead of with the exit code, even if the exception was caught.
    """


@dataclass
class _Interruption:
    """Signals that this process has received, the message that an interrupted command prints, and its exit callbacks.

    Attributes:
        depth: nesting level of `terminable`.
        first: time of the first signal (`time.monotonic`); None if no signal was received.
        farewell: message that an interrupted command prints at its end.
        endings: functions that are called when the command ends.
    """

    depth: int = 0
    first: float | None = None
    farewell: str = FAREWELL
    endings: list[Callable[[], None]] = field(default_factory=list)


_state = _Interruption()


def interrupt() -> None:
    """Send SIGTERM to this process, to end the running command from any thread. No-op outside of `terminable`."""
    if _state.depth:
        os.kill(os.getpid(), signal.SIGTERM)


def exit_sentence(sentence: str | None = None) -> str:
    """Set the message that an interrupted command prints at its end, if `sentence` is not empty; return the message."""
    _state.farewell = printable(sentence) if sentence else _state.farewell
    return _state.farewell


def is_interrupted() -> bool:
    """Return True if this process has received SIGINT, SIGTERM or SIGHUP inside `terminable`."""
    return _state.first is not None


def time_left(most: float) -> float:
    """Return the time limit of a clean-up step, in seconds.

    The limit is `most`. After a signal, it is at most the time that is left until the process ends, minus 2 s.
    """
    if _state.first is None:
        return most
    return max(0.0, min(most, _state.first + LIMIT - 2.0 - time.monotonic()))


def run_before_exit(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a function to be called at the end of the outermost `terminable` and again at exit of the process.

    At the end of `terminable`, our signal handlers are still set, so a signal can interrupt the function.

    Args:
        callback: the function. It may be called twice.

    Returns:
        The function, so that this can be used as a decorator.
    """
    _state.endings.append(callback)
    atexit.register(callback)
    return callback


@contextmanager
def terminable(*, for_good: bool = False) -> Iterator[None]:
    """Context manager that sets handlers for SIGINT, SIGTERM and SIGHUP.

    The first of these signals raises `TrainingInterrupted` in the block; a second one ends the process immediately.
    Signals that this process ignored from its start (nohup) stay ignored. Outside of the main thread, the context does
    nothing.

    Args:
        for_good: True if the process ends after a signal. The handlers then stay set after the block, so that a late
            signal does not reach Python's default handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # Prefect sets its own handler while a flow runs. A nested `terminable` sets ours again, then restores Prefect's.
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    outermost = _state.depth == 0
    _state.depth += 1
    if outermost:
        _state.farewell = FAREWELL
    try:
        yield
    finally:
        try:
            if outermost:
                for ending in _state.endings:
                    ending()
        finally:
            _state.depth -= 1
            if not (for_good and is_interrupted()):
                for number, handler in before.items():
                    signal.signal(number, handler)
                _state.first = None if outermost else _state.first


def stay_terminable() -> AbstractContextManager[None]:
    """Return a context manager that sets the handlers of `terminable` again, after a library has replaced them.

    If no `terminable` is active, the returned context does nothing.
    """
    return terminable() if _state.depth else nullcontext()


def _on_signal(number: int, frame: Any) -> None:
    now = time.monotonic()
    if _state.first is None:
        _state.first = now
        if number == signal.SIGHUP:
            close_dead_outputs()
        # `threading` acquires locks, and this handler may have interrupted their owner.
        _thread.start_new_thread(_end_at_limit, (now,))
        raise TrainingInterrupted
    # A closed terminal sends SIGHUP more than once: from the shell and from the kernel.
    if number != signal.SIGHUP and now - _state.first > REPEAT:
        _leave()


def close_dead_outputs() -> None:
    """Redirect stdin, stdout and stderr to /dev/null if their terminal is closed or their pipe has no reader.

    Otherwise, later output would raise an error.
    """
    look = select.poll()
    for descriptor in (0, 1, 2):
        look.register(descriptor, 0)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for descriptor, event in look.poll(0):
            if event & select.POLLERR:
                os.dup2(nothing.fileno(), descriptor)


def _end_at_limit(first: float) -> None:
    time.sleep(LIMIT)
    if _state.first == first:  # False in a notebook that has caught the exception and continues
        _leave()


def _leave() -> None:
    start = "\n" if os.isatty(2) else ""  # ends a progress line
    with suppress(OSError):
        os.write(2, f"{start}{_state.farewell}\n".encode())
    os._exit(CODE)

"""Signal handling of commands: Ctrl-C (SIGINT), SIGTERM, and a closed terminal (SIGHUP).

The first signal raises an exception, so that resources are closed and the trainer writes a checkpoint. A second signal
ends the process at once, and so do LIMIT seconds after the first one. The children end with the process
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
    """Interruption of a training by a signal. The state of the training is saved. The exit code is 130.

    A plain KeyboardInterrupt cannot replace this class. If one passes through `exec` (dataclasses, named tuples),
    Python later ends by SIGINT with any exit code, even if the exception was caught long before.
    """


@dataclass
class _Interruption:
    """State of the signal handling of this process."""

    depth: int = 0  # nesting level of `terminable`
    first: float | None = None  # time of the first signal (`time.monotonic`)
    farewell: str = FAREWELL
    endings: list[Callable[[], None]] = field(default_factory=list)


_state = _Interruption()


def interrupt() -> None:
    """End the running command, from any thread, as SIGTERM does. Does nothing outside of `terminable`."""
    if _state.depth:
        os.kill(os.getpid(), signal.SIGTERM)


def exit_sentence(sentence: str | None = None) -> str:
    """Return the last message of an interrupted command. If `sentence` is not empty, it first replaces the message."""
    _state.farewell = printable(sentence) if sentence else _state.farewell
    return _state.farewell


def is_interrupted() -> bool:
    """Return True if this process has received a signal to end."""
    return _state.first is not None


def time_left(most: float) -> float:
    """Return the time limit of one clean-up step, in seconds.

    It is `most`, or less if a signal arrived some time ago.
    """
    if _state.first is None:
        return most
    return max(0.0, min(most, _state.first + LIMIT - 2.0 - time.monotonic()))


def run_before_exit(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a function to be called at the end of the outermost `terminable` and at exit.

    At the end of `terminable`, signals are still handled.
    """
    _state.endings.append(callback)
    atexit.register(callback)
    return callback


@contextmanager
def terminable(*, for_good: bool = False) -> Iterator[None]:
    """Context manager that ends its block, and then the command, after a signal.

    The first SIGINT, SIGTERM or SIGHUP raises `TrainingInterrupted`; the second ends the process. Signals that this
    process was started to ignore (nohup) stay ignored. Outside of the main thread nothing changes.

    Args:
        for_good: the process ends after a signal. The handlers then stay, so that later signals do not reach Python's
            default handlers.
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
    """Set the signal handlers of the enclosing `terminable` again after a library has replaced them.

    Outside of `terminable`, nothing changes.
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
    """Redirect outputs to /dev/null if their terminal is closed or their pipe has no reader.

    Later output then does not fail.
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

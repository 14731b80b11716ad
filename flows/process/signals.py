"""End of a command that is told to end: Ctrl-C, SIGTERM, a closed terminal (SIGHUP).

The first signal raises an exception, so that what is open is closed and the trainer writes a checkpoint. A second one,
or LIMIT seconds, end the process at once: its children end with it (rlcore.system.lifeline); the run can be resumed.
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

LIMIT = 24.0  # seconds from the first signal to the end of the process, whatever happens
REPEAT = 0.1  # seconds; `timeout` and others send the same signal to the process and to its group: that is one
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CODE = 130
FAREWELL = "shepherd: interrupted"


class TrainingInterrupted(KeyboardInterrupt):
    """A signal told training to end; its state is durable. Exit code 130.

    A class of its own: where a plain KeyboardInterrupt passes through `exec` (dataclasses, named tuples), Python ends
    by SIGINT in the end, whatever code it was given, though the exception was caught long before.
    """


@dataclass
class _Interruption:
    """State of this process's end."""

    depth: int = 0  # of `terminable` in `terminable`
    first: float | None = None  # when the first signal came
    farewell: str = FAREWELL
    endings: list[Callable[[], None]] = field(default_factory=list)


_state = _Interruption()


def interrupt() -> None:
    """End the command around this, from any thread, as SIGTERM would; nothing where no `terminable` is."""
    if _state.depth:
        os.kill(os.getpid(), signal.SIGTERM)


def exit_sentence(sentence: str | None = None) -> str:
    """The sentence that an interrupted command ends with; from now on another one, where one is given."""
    _state.farewell = printable(sentence) if sentence else _state.farewell
    return _state.farewell


def is_interrupted() -> bool:
    """Tell whether a signal has told this process to end."""
    return _state.first is not None


def time_left(most: float) -> float:
    """Seconds that one part of a command's end may take: at most so many, and less when a signal came some time ago."""
    if _state.first is None:
        return most
    return max(0.0, min(most, _state.first + LIMIT - 2.0 - time.monotonic()))


def run_before_exit(callback: Callable[[], None]) -> Callable[[], None]:
    """Have a function called at the end of the outermost `terminable`, where signals still count; else at exit."""
    _state.endings.append(callback)
    atexit.register(callback)
    return callback


@contextmanager
def terminable(*, for_good: bool = False) -> Iterator[None]:
    """Let the first of SIGINT, SIGTERM and SIGHUP raise `TrainingInterrupted`, and the second one end the process.

    A signal that this process was started to ignore (nohup) stays ignored; outside of the main thread all stay as they
    are. With `for_good` the process ends once a signal came: later ones are not to find Python's own handlers again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    # Prefect sets a handler of its own while a flow runs: inside it ours is set again, and then taken back.
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
    """Set the handlers of the `terminable` around this again, because a library has set its own; without one, none."""
    return terminable() if _state.depth else nullcontext()


def _on_signal(number: int, frame: Any) -> None:
    now = time.monotonic()
    if _state.first is None:
        _state.first = now
        if number == signal.SIGHUP:
            close_dead_outputs()
        _thread.start_new_thread(_end_at_limit, (now,))  # threading's own takes locks that we may have interrupted
        raise TrainingInterrupted
    # A closing terminal sends SIGHUP more than once: from the shell and from the kernel.
    if number != signal.SIGHUP and now - _state.first > REPEAT:
        _leave()


def close_dead_outputs() -> None:
    """Point a closed terminal, or a pipe that nobody reads, at nothing: no later line fails, a library's neither."""
    look = select.poll()
    for descriptor in (0, 1, 2):
        look.register(descriptor, 0)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for descriptor, event in look.poll(0):
            if event & select.POLLERR:
                os.dup2(nothing.fileno(), descriptor)


def _end_at_limit(first: float) -> None:
    time.sleep(LIMIT)
    if _state.first == first:  # and not a notebook that has caught the exception and goes on
        _leave()


def _leave() -> None:
    start = "\n" if os.isatty(2) else ""  # a progress line may stand there
    with suppress(OSError):
        os.write(2, f"{start}{_state.farewell}\n".encode())
    os._exit(CODE)

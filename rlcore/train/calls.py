"""Calls of functions in the trainer process on behalf of its parent. Exceptions are sent back and raised there."""

from __future__ import annotations

import base64
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from rlcore.errors import EnvironmentFault, RunError
from rlcore.system.printable import print_traceback
from rlcore.user_code import explain_exit, is_failure, spell_error

Say = Callable[..., None]
WORK_EVERY = 1.0  # seconds between two progress lines of one task


def call(function: str, arguments: Sequence[Any], say: Say) -> None:
    """Call a function and send its result or its exception as an event. An exception does not end this process.

    Args:
        function: `module.name`; receives `say` before its arguments, to report progress.
        arguments: JSON values, like the result.
        say: writes one event.
    """
    try:
        result = find(function)(say, *arguments)
    except BaseException as error:
        if not is_failure(error):
            raise
        print_traceback()
        failed = error if isinstance(error, Exception) else EnvironmentFault(explain_exit(error))
        say("failed", error=pack(failed), sentence=spell_error(failed))
    else:
        say("called", result=result)


def find(place: str) -> Callable[..., Any]:
    """Return the function named `module.name`."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


class ProgressTimer:
    """Timer of the progress lines of one task: a line is due `WORK_EVERY` seconds after the previous one."""

    def __init__(self) -> None:
        self._sent = time.monotonic()

    def due(self, always: bool = False) -> bool:
        """Return True if a line is due or `always` is True, and restart the timer in this case."""
        due = always or time.monotonic() - self._sent >= WORK_EVERY
        if due:
            self._sent = time.monotonic()
        return due


def pack(error: Exception) -> str:
    """Return an exception as text for `unpack`, with its traceback as a note; "" if it cannot be pickled."""
    error.add_note("".join(["in the trainer's process:\n", *traceback.format_exception(error)]))
    try:
        return base64.b64encode(pickle.dumps(error)).decode()
    except Exception:  # attributes of an exception can be of any type
        return ""


def unpack(text: str, sentence: str) -> Exception:
    """Return the exception that a child process packed, or a `RunError` with `sentence` if it cannot be unpickled."""
    try:
        error = pickle.loads(base64.b64decode(text))
    except Exception:  # the class may need other arguments, or its module cannot be imported here
        return RunError(sentence)
    return error if isinstance(error, Exception) else RunError(sentence)

"""Functions that a trainer calls for its driver, which need torch; an exception goes back to the driver as it is."""

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
WORK_EVERY = 1.0  # seconds between two lines of how far a piece of work is


def call(function: str, arguments: Sequence[Any], say: Say) -> None:
    """Call a function and say its result, or the exception that it ended with, which ends nothing here.

    Args:
        function: `module.name`; gets `say` before its arguments, for what it has to tell while it works.
        arguments: JSON, as the result is.
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
    """The function at a place, `module.name`."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


class ProgressTimer:
    """Pace of the lines about a piece of work: another is due `WORK_EVERY` seconds after the last."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def due(self, always: bool = False) -> bool:
        """Tell whether a line is due, or is to be said at once; True is taken as said."""
        due = always or time.monotonic() - self._said >= WORK_EVERY
        if due:
            self._said = time.monotonic()
        return due


def pack(error: Exception) -> str:
    """An exception as text for `unpack`, with the traceback among its notes; "" of one that cannot be pickled."""
    error.add_note("".join(["in the trainer's process:\n", *traceback.format_exception(error)]))
    try:
        return base64.b64encode(pickle.dumps(error)).decode()
    except Exception:  # a class may hold anything
        return ""


def unpack(text: str, sentence: str) -> Exception:
    """The exception that a child of this process packed; a `RunError` of the sentence where it cannot be had."""
    try:
        error = pickle.loads(base64.b64decode(text))
    except Exception:  # its class may want other arguments, or be of a module that is not here
        return RunError(sentence)
    return error if isinstance(error, Exception) else RunError(sentence)

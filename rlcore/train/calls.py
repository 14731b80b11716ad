"""Calls of functions in the trainer process on behalf of its parent process, which also receives their exceptions."""

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

Send = Callable[..., None]
WORK_EVERY = 1.0  # seconds between two progress lines of one task


def call(function: str, arguments: Sequence[Any], send: Send) -> None:
    """Call a function and send its result or its exception as an event. An exception does not end this process.

    Args:
        function: name of the function, as "module.name". It is called as `function(send, *arguments)`, so that it can
            report its progress, and returns a JSON value.
        arguments: arguments of the function, as JSON values.
        send: callback that writes one event: `send(event, **fields)`.
    """
    try:
        result = find(function)(send, *arguments)
    except BaseException as error:
        if not is_failure(error):
            raise
        print_traceback()
        failed = error if isinstance(error, Exception) else EnvironmentFault(explain_exit(error))
        send("failed", error=pack(failed), sentence=spell_error(failed))
    else:
        send("called", result=result)


def find(path: str) -> Callable[..., Any]:
    """Import a module and return one of its functions. `path` is "module.name"."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


class ProgressTimer:
    """Timer that limits the progress messages of a task to one per `WORK_EVERY` seconds."""

    def __init__(self) -> None:
        self._sent = time.monotonic()

    def due(self, always: bool = False) -> bool:
        """Return True if the next message may be sent, or if `always` is True. In both cases, restart the timer."""
        due = always or time.monotonic() - self._sent >= WORK_EVERY
        if due:
            self._sent = time.monotonic()
        return due


def pack(error: Exception) -> str:
    """Pickle an exception and return it as base64 text for `unpack`; "" if it cannot be pickled.

    The traceback is added to the exception as a note.
    """
    error.add_note("".join(["in the trainer's process:\n", *traceback.format_exception(error)]))
    try:
        return base64.b64encode(pickle.dumps(error)).decode()
    except Exception:  # attributes of an exception can be of any type
        return ""


def unpack(text: str, sentence: str) -> Exception:
    """Return the exception from which a child process created `text` with `pack`.

    If it cannot be unpickled, return a `RunError` with the message `sentence`.
    """
    try:
        error = pickle.loads(base64.b64decode(text))
    except Exception:  # the class may need other arguments, or its module cannot be imported here
        return RunError(sentence)
    return error if isinstance(error, Exception) else RunError(sentence)

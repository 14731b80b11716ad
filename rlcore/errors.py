"""Errors that commands report by their message, without a traceback.

A command ends with exit code 2 after a mistake of the user, and with exit code 1 after a failure of a run.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlcore.system.printable import printable
from rlcore.system.secrets import redact

KILLS = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
)  # sent by other processes, not due to faulty code
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class ShepherdError(Exception):
    """Base class of errors that are reported to the user by their message alone, without a traceback.

    Passwords in URLs and control characters are removed from the message. Words of 500 or more characters are shortened
    in the middle.
    """

    def __str__(self) -> str:
        text = printable(redact(super().__str__()))
        return re.sub(r"\S{500,}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", text)


class UserError(ShepherdError):
    """Mistake of the user. The message gives the key, the value and the fix. Exit code 2.

    Args:
        *arguments: the message.
        mistakes: if this error combines several errors: these errors. The message then has one line for each of them.
    """

    def __init__(self, *arguments: Any, mistakes: tuple[UserError, ...] = ()) -> None:
        super().__init__(*arguments)
        self.mistakes = mistakes or (self,)


class NotSupported(UserError):
    """Error for a preset, a suite or an environment that does not exist in this version."""


class MissingValue(UserError):
    """Error for a required config key without a value; reported only if the config has no other error."""


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes, because their frames keep environments alive."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


class Mistakes:
    """Collection of `UserError`s, so that all mistakes in a command or config are reported together."""

    def __init__(self) -> None:
        self._found: list[UserError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, *mistakes: UserError) -> None:
        """Add errors to the collection."""
        for mistake in mistakes:
            _forget_frames(mistake)
        self._found += mistakes

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Context manager that suppresses a `UserError` raised in its block, and adds it to the collection."""
        try:
            yield
        except UserError as error:
            self.note(*error.mistakes)

    def any(self, holds: Callable[[UserError], bool]) -> bool:
        """Return True if the function `holds` returns True for at least one of the collected errors."""
        return any(holds(error) for error in self._found)

    def leave_out(self, follows: Callable[[UserError], bool]) -> None:
        """Remove errors that are only consequences of other errors; keep them if there are no other errors.

        Args:
            follows: function that takes an error and returns True if it is a consequence of another error.
        """
        self._found = [error for error in self._found if not follows(error)] or self._found

    def raise_collected(self, first: tuple[str, ...] = ()) -> None:
        """Raise the collected errors, if there are any, as one `UserError`.

        `MissingValue` errors are omitted if there are other errors.

        Args:
            first: beginnings of messages; errors whose message starts with one of them come first.

        Raises:
            UserError: at least one error was collected.
        """
        found = [error for error in self._found if not isinstance(error, MissingValue)] or self._found
        messages = {str(error): error for error in sorted(found, key=lambda error: not str(error).startswith(first))}
        if len(messages) == 1:
            raise found[0]
        if messages:
            raise UserError("\n".join(messages), mistakes=tuple(messages.values()))


class RunError(ShepherdError):
    """Failure of a run that is not a mistake of the user: a faulty environment, a NaN, a full disk. Exit code 1."""


class CompilationError(ShepherdError):
    """Error for a function whose compilation failed, or whose compiled code returned wrong results.

    Attributes:
        logged: True if the failure was logged already.
        key: key of the function in the cache of compiled code; None if it is unknown which function failed.
    """

    logged = False
    key: str | None = None


class CallbackError(RunError):
    """Error for a callback that raised an exception; it names the callback, the method and the exception."""


class MachineFault(RunError):
    """Failure caused by the machine (disk, memory, killed process) and not by the code; a retry may succeed."""


class DiskFault(MachineFault):
    """Error for a failed write to a disk that is full, read-only or broken; a retry may succeed."""


class OutOfMemory(MachineFault):
    """Error for a failed allocation of CPU or GPU memory."""


class ProcessKilled(MachineFault):
    """Error for a process that was ended by a signal from outside.

    The signal can be from the kernel's out-of-memory killer, a service manager or a person.
    """


class EnvironmentFault(RunError):
    """Error for an environment that raised an exception, ended its process, hung or returned an invalid value.

    The message contains the index of the environment, the step, and the observation key if there is one.
    """


class EnvironmentLost(EnvironmentFault):
    """Error for an environment whose process died or hung.

    A retry may succeed. After other errors of an environment, such as an exception, it would fail again.
    """


def exit_error(code: int, sentence: str) -> RunError:
    """Create the error for a process that has ended with exit code `code`; its message is `sentence`.

    The class is `ProcessKilled` if `code` is the negative number of a signal in `KILLS`, otherwise `RunError`.
    """
    return (ProcessKilled if -code in KILLS else RunError)(sentence)


def machine_fault(error: BaseException) -> MachineFault | None:
    """Convert an exception caused by a full or broken disk, or by missing memory, to the matching `MachineFault`.

    Return None if the exception has another cause.
    """
    if isinstance(error, MachineFault):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        return DiskFault(f"{error.filename or 'a file'}: {error.strerror}")
    out_of_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    # torch raises OutOfMemoryError (a RuntimeError) for GPU memory, and a plain RuntimeError for CPU memory.
    torchs = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if out_of_memory or (isinstance(error, RuntimeError) and torchs):
        return OutOfMemory(f"out of memory ({first_line(error) or type(error).__name__})")
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or "" if the message is empty."""
    return (str(error).strip().splitlines() or [""])[0]

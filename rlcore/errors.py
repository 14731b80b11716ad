"""Errors that are reported in one sentence: user errors (exit code 2) and run failures (exit code 1)."""

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
    """Error with a message of one sentence. Passwords in URLs and control characters are removed from the message.

    Words of 500 or more characters are shortened in the middle.
    """

    def __str__(self) -> str:
        text = printable(redact(super().__str__()))
        return re.sub(r"\S{500,}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", text)


class UserError(ShepherdError):
    """Mistake of the user. The message gives the key, the value and the fix. Exit code 2.

    Args:
        *arguments: the message.
        mistakes: the single errors, if this error combines several; the message has one line for each.
    """

    def __init__(self, *arguments: Any, mistakes: tuple[UserError, ...] = ()) -> None:
        super().__init__(*arguments)
        self.mistakes = mistakes or (self,)


class NotSupported(UserError):
    """Request for a preset, a suite or an environment that this version does not have."""


class MissingValue(UserError):
    """Required key without a value. Reported only if there is no other error."""


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes, because their frames keep environments alive."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


class Mistakes:
    """Collection of user errors that are reported together."""

    def __init__(self) -> None:
        self._found: list[UserError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, *mistakes: UserError) -> None:
        """Add errors."""
        self._found += mistakes

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Context manager that adds a `UserError` raised in its block, and suppresses it."""
        try:
            yield
        except UserError as error:
            for mistake in error.mistakes:
                _forget_frames(mistake)
            self.note(*error.mistakes)

    def any(self, holds: Callable[[UserError], bool]) -> bool:
        """Return True if `holds` returns True for the message of at least one collected error."""
        return any(holds(error) for error in self._found)

    def leave_out(self, follows: Callable[[UserError], bool]) -> None:
        """Remove errors that are consequences of other errors, unless this would remove all errors.

        Args:
            follows: function that returns True for the message of an error that is a consequence.
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
    """Failure of a run, such as a faulty environment, a NaN or a full disk. Exit code 1."""


class CompilationError(ShepherdError):
    """Failed compilation of a function, or compiled code with wrong results.

    Attributes:
        logged: True if the failure was logged already.
        key: cache key of the function; None if it is unknown which of several functions failed.
    """

    logged = False
    key: str | None = None


class MachineFault(RunError):
    """Failure caused by the machine, not by the run; a retry may succeed."""


class DiskFault(MachineFault):
    """Failed write to a disk that is full, read-only or broken; a retry may succeed."""


class OutOfMemory(MachineFault):
    """Failed allocation of CPU or GPU memory."""


class ProcessKilled(MachineFault):
    """Process ended by a signal from outside: the kernel's out-of-memory killer, a service manager or a person."""


class EnvironmentFault(RunError):
    """Error for an environment that raised, died, hung or returned an invalid value; has index, step and key."""


class EnvironmentLost(EnvironmentFault):
    """Error for an environment whose process died or hung; a retry may succeed, unlike after other faults."""


def exit_error(code: int, sentence: str) -> RunError:
    """Return the error for a process that has ended with an exit code.

    It is `ProcessKilled` if `code` is the negative of a signal in `KILLS`, otherwise `RunError`.
    """
    return (ProcessKilled if -code in KILLS else RunError)(sentence)


def machine_fault(error: BaseException) -> MachineFault | None:
    """Return the machine fault that an exception indicates (full disk, out of memory), or None if it is another one."""
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

"""The two ways things go wrong: a mistake of the user (exit 2) and a failure of the run (exit 1)."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlcore.system.printable import printable
from rlcore.system.secrets import redact

KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # no fault of code sends these
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class Sentence(Exception):
    """An error that is told in one sentence, without passwords of quoted addresses and control characters.

    A value of more than 500 characters is cut in its middle.
    """

    def __str__(self) -> str:
        told = printable(redact(super().__str__()))
        return re.sub(r"\S{500,}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", told)


class UserError(Sentence):
    """A mistake of the user, told in one sentence that names the key, the value and the fix. Exit code 2.

    `mistakes` are those of one that tells of several, a sentence each, in lines.
    """

    def __init__(self, *arguments: Any, mistakes: tuple[UserError, ...] = ()) -> None:
        super().__init__(*arguments)
        self.mistakes = mistakes or (self,)


class Unset(UserError):
    """A key without a value that needs one: of interest where nothing else is wrong."""


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what an error, and those it came of, passed through: frames hold environments, half made ones too."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


class Mistakes:
    """Mistakes that are gathered, to be told all at once."""

    def __init__(self) -> None:
        self._found: list[UserError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, *mistakes: UserError) -> None:
        """Add some."""
        self._found += mistakes

    @contextmanager
    def catch(self) -> Iterator[None]:
        """Inside the `with`, a `UserError` ends the block and is added."""
        try:
            yield
        except UserError as error:
            for mistake in error.mistakes:
                _forget_frames(mistake)
            self.note(*error.mistakes)

    def any(self, holds: Callable[[str], bool]) -> bool:
        """Return True if `holds` is true of the sentence of a mistake."""
        return any(holds(str(error)) for error in self._found)

    def leave_out(self, follows: Callable[[str], bool]) -> None:
        """Forget mistakes that follow from others, by their sentences, unless none would be left."""
        self._found = [error for error in self._found if not follows(str(error))] or self._found

    def tell(self, first: tuple[str, ...] = ()) -> None:
        """Raise what was gathered, if anything; several are one `UserError`.

        Those that begin with one of `first` come first. Keys that are only unset are left out beside others.
        """
        found = [error for error in self._found if not isinstance(error, Unset)] or self._found
        told = {str(error): error for error in sorted(found, key=lambda error: not str(error).startswith(first))}
        if len(told) == 1:
            raise found[0]
        if told:
            raise UserError("\n".join(told), mistakes=tuple(told.values()))


class RunError(Sentence):
    """A run that cannot go on (a faulty environment, a NaN, a full disk), told in one sentence. Exit code 1."""


class MachineFault(RunError):
    """A machine that does not give what a run needs: not the run's doing, and another time all may be well."""


class DiskFault(MachineFault):
    """A disk that does not take what is written to it: full, read-only, broken. It may pass by itself."""


class OutOfMemory(MachineFault):
    """Memory that is not there, of the processor or of a GPU."""


class Killed(MachineFault):
    """A process that somebody ended by a signal: the kernel where memory is short, a service manager, a person."""


class EnvironmentFault(RunError):
    """An environment that raised, died, hung or returned what it must not; names env index, step and key."""


class EnvironmentLost(EnvironmentFault):
    """An environment's process died or hung: unlike other faults this may pass, so a run may try again by itself."""


def death(code: int, sentence: str) -> RunError:
    """The error of a process that ended with a code nobody asked for: `Killed` by a signal that others send."""
    return (Killed if -code in KILLS else RunError)(sentence)


def machine_fault(error: BaseException) -> MachineFault | None:
    """The fault of the machine that an exception of Python, PyTorch or the system stands for; None where of none."""
    if isinstance(error, MachineFault):
        return error
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        return DiskFault(f"{error.filename or 'a file'}: {error.strerror}")
    out_of_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    # torch's class for GPUs is a RuntimeError; its allocator of the processor's memory has none of its own.
    torchs = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if out_of_memory or (isinstance(error, RuntimeError) and torchs):
        return OutOfMemory(f"out of memory ({first_line(error) or type(error).__name__})")
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, "" where it has none."""
    return (str(error).strip().splitlines() or [""])[0]

"""Protection of this process from user code: environments, plugins and algorithms."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.errors import EnvironmentFault, first_line


@contextmanager
def user_code() -> Iterator[None]:
    """Context manager for calls of user code, so that it can neither end this process nor change its working directory.

    The working directory is restored afterwards, because later commands, child processes and printed paths are relative
    to it.

    Raises:
        EnvironmentFault: the user code called `sys.exit()` or raised KeyboardInterrupt.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # user code changed to a folder and removed it; an outer context restores the first one
        here = None
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_failure(error):
            raise
        raise EnvironmentFault(explain_exit(error)) from error
    finally:
        if here is not None:
            os.chdir(here)


def is_failure(error: BaseException) -> bool:
    """Return True if an exception is a failure of user code, False if it should end this process.

    `sys.exit()` in an environment is a failure of that environment. KeyboardInterrupt is a failure too, except if
    Python's default handler of Ctrl-C is installed, which also raises it. Processes that Shepherd starts have other
    handlers.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    # PanicException of Rust libraries (PyO3) derives from BaseException.
    return isinstance(error, (Exception, SystemExit)) or type(error).__name__ == "PanicException"


def explain_exit(error: BaseException) -> str:
    """Return an error message for an exception that would have ended this process, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"an environment, a plugin or an algorithm raised {spell_error(error)}{where}, which would end this process"


def spell_error(error: BaseException) -> str:
    """Return the class name of an error and the first line of its message."""
    return f"{type(error).__name__}: {line}" if (line := first_line(error)) else type(error).__name__

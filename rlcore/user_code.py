"""Border around code of the user's (an environment, a plugin, an algorithm): what it may not do to this process."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.errors import EnvironmentFault, first_line


@contextmanager
def user_code() -> Iterator[None]:
    """Run code of the user's inside the `with`: it cannot end this process or leave it in another folder.

    The working directory is restored, because later commands, child processes and printed paths are relative to it.

    Raises:
        EnvironmentFault: the code called `sys.exit()` or raised KeyboardInterrupt.
    """
    here = os.getcwd()
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_failure(error):
            raise
        raise EnvironmentFault(explain_exit(error)) from error
    finally:
        os.chdir(here)


def is_failure(error: BaseException) -> bool:
    """Return True for an error of the code that raised it, False for an exception that is to end this process.

    `sys.exit()` in an environment is an error of that environment. So is a plain KeyboardInterrupt, unless Python's own
    handler of Ctrl-C is set, which raises the same: processes that Shepherd starts have other handlers.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    # A panic of a library in Rust is a BaseException, too.
    return isinstance(error, (Exception, SystemExit)) or type(error).__name__ == "PanicException"


def explain_exit(error: BaseException) -> str:
    """Return a sentence about an exception that would have ended this process, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"an environment, a plugin or an algorithm raised {spell_error(error)}{where}, which would end this process"


def spell_error(error: BaseException) -> str:
    """Return the name of an error and the first line of its message."""
    return f"{type(error).__name__}: {line}" if (line := first_line(error)) else type(error).__name__

"""Protection of this process from user code: environments, plugins and algorithms."""

from __future__ import annotations

import inspect
import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from rlcore.errors import EnvironmentFault, first_line


@contextmanager
def user_code() -> Iterator[None]:
    """Context manager for calls of user code, which can then neither end this process nor change its working directory.

    If the code changes the working directory, it is restored at the end of the block, because relative paths in this
    process and its children depend on it.

    Raises:
        EnvironmentFault: the user code called `sys.exit()`, or raised KeyboardInterrupt or GeneratorExit.
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

    `sys.exit()` in an environment is a failure of that environment. KeyboardInterrupt should end the process if
    Python's default handler of SIGINT is installed, because the user may have pressed Ctrl-C. Otherwise only user code
    can have raised it, so it is a failure. Processes that Shepherd starts do not use the default handler. Python raises
    GeneratorExit in a generator to close it; if a function raises it, it is a failure.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if isinstance(error, GeneratorExit):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return bool(frames) and not frames[-1].f_code.co_flags & inspect.CO_GENERATOR
    # PanicException of Rust libraries (PyO3) derives from BaseException.
    return isinstance(error, (Exception, SystemExit)) or type(error).__name__ == "PanicException"


def explain_exit(error: BaseException) -> str:
    """Return an error message for an exception of user code that would have ended this process, such as SystemExit.

    The message contains the file and line that raised the exception.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"an environment, a plugin or an algorithm raised {spell_error(error)}{where}, which would end this process"


def spell_error(error: BaseException) -> str:
    """Return the class name of an error and the first line of its message."""
    return f"{type(error).__name__}: {line}" if (line := first_line(error)) else type(error).__name__

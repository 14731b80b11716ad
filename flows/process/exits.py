"""Error messages and exit codes of commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flows.process.locks import is_locked
from flows.process.signals import exit_sentence
from rlcore.errors import DISK_FAULTS, DiskFault, MachineFault, RunError, UserError
from rlcore.system.printable import print_safely, printable_line
from rlcore.system.secrets import redact


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit code: that of the command, or 2 after a user error, or 1 after a failure.

    Known errors are printed as one line each, without a traceback. Other exceptions are raised.
    """
    try:
        return command()
    except UserError as error:
        print_safely(*(f"shepherd: {printable_line(str(one))}" for one in error.mistakes), sep="\n", file=sys.stderr)
        return 2
    except RunError as error:
        print_safely(f"shepherd: failed: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `shepherd config … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PermissionError as error:
        print_safely(
            f"shepherd: {error.filename or 'a file'}: {error.strerror}; choose a folder that you can write to",
            file=sys.stderr,
        )
        return 2
    except Exception as error:
        if is_locked(error):
            reason = "another process has locked a database; end it and run the command again"
            print_safely(f"shepherd: failed: {reason}", file=sys.stderr)
            return 1
        if type(error).__module__.startswith("mlflow."):  # compares the name, because importing mlflow takes seconds
            reason = redact((str(error).splitlines() or ["no reason given"])[0])
            print_safely(f"shepherd: failed: MLflow: {reason}", file=sys.stderr)
            return 1
        if not isinstance(error, OSError) or error.errno not in DISK_FAULTS:
            raise
        print_safely(f"shepherd: failed: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 1


@contextmanager
def name_continuation(command: str) -> Iterator[None]:
    """Context manager that adds "continue with: <command>" to messages about an interrupted run.

    The text is added to the message that is printed after a signal, and to the messages of machine faults, such as a
    full disk.

    Args:
        command: command line that resumes the run.

    Yields:
        Nothing.
    """
    exit_sentence(f"shepherd: interrupted; continue with: {command}")
    try:
        yield
    except DiskFault as fault:
        raise DiskFault(f"{fault}; when the disk is writable again, continue with: {command}") from None
    except MachineFault as fault:
        raise type(fault)(f"{fault}; continue with: {command}") from None

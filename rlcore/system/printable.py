"""Safe output of text from users, files and environments to a terminal, with control characters escaped."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any, TextIO

# C0, DEL and C1, line and paragraph separators, marks that change the direction of text, and halves of surrogate
# pairs (bytes of a command line that are not UTF-8). Newlines and tabs are harmless.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


# `extra=` of log messages that are written to run.log, but are not shown on the terminal.
DETAIL = {"detail": True}


def printable(text: str) -> str:
    r"""Replace control characters in a text by Python escapes, such as `\x1b`, except newlines and tabs."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    r"""Replace control characters in a text by Python escapes, including newlines and tabs, so that it is one line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def print_safely(*parts: Any, sep: str = " ", file: TextIO | None = None, flush: bool = False) -> None:
    """Print like `print`, but with control characters escaped. Commands print only with this function or with rich."""
    print(printable(sep.join(map(str, parts))), file=sys.stdout if file is None else file, flush=flush)


def print_traceback() -> None:
    """Print the traceback of the current exception to stderr, with control characters escaped."""
    print_safely(traceback.format_exc().rstrip("\n"), file=sys.stderr)


class PrintableFormatter(logging.Formatter):
    """Formatter of log lines that escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record, with control characters escaped."""
        return printable(super().format(record))


def log_handler(format: str) -> logging.Handler:
    """Return a log handler for stderr that escapes control characters; `format` is a format string of `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(format))
    return handler

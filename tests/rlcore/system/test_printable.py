"""Control characters in text that is printed or logged."""

from __future__ import annotations

import io
import logging

import pytest

from rlcore.errors import RunError, UserError
from rlcore.system.printable import PrintableFormatter, print_safely, print_traceback, printable, printable_line


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("back\r\x08\x00", r"back\r\x08\x00"),
        ("\x7f\x85\x9b2J", r"\x7f\x85\x9b2J"),
        ("a\u202eb\u2066c\u2028", r"a\u202eb\u2066c\u2028"),
        ("\udcff", r"\udcff"),
        ("plain, ä 字 ━ é\u0301 🙂\n\tnext", "plain, ä 字 ━ é\u0301 🙂\n\tnext"),
    ],
)
def test_printable_escapes_only_control_characters(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_printable_line_escapes_newlines() -> None:
    assert printable_line("a\nb\tc\x1b") == r"a\nb\tc\x1b"


@pytest.mark.parametrize("error", [UserError, RunError])
def test_error_escapes_quoted_control_characters(error: type[Exception]) -> None:
    assert str(error("env.id=\x1b[2J: no such environment")) == r"env.id=\x1b[2J: no such environment"


def test_print_safely_escapes_every_part() -> None:
    out = io.StringIO()
    print_safely("\x1b[1m", 3, "\u202e", sep="|", file=out)
    assert out.getvalue() == "\\x1b[1m|3|\\u202e\n"


def test_print_traceback_escapes_message(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        print_traceback()
    assert capsys.readouterr().err.endswith("ValueError: \\x1b[31m\n")


def test_formatter_escapes_message_and_exception() -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": ("\x1b]0;title\x07",), "levelname": "WARNING"})
    assert PrintableFormatter("%(levelname)s %(message)s").format(record) == r"WARNING \x1b]0;title\x07"

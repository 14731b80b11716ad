"""Drawing with rich: colours on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000  # columns


def console(stream: TextIO | None) -> Console:
    """Rich's console for a stream, None where the program has none. `NO_COLOR` and `TERM=dumb` forbid colours."""
    terminal = stream is not None and stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,  # FORCE_COLOR and notebooks do not put control characters into files
        force_jupyter=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if terminal else UNLIMITED,
        markup=False,  # intervals stand in square brackets
        highlight=False,
        emoji=False,
    )


def show(*parts: RenderableType) -> None:
    """Print parts below each other on standard output.

    Lines are as long as what they hold: a terminal too narrow for a table or a path breaks them itself, and what is
    copied from it is whole.
    """
    out = console(sys.stdout)
    out.width = UNLIMITED
    with out.capture() as drawn:
        out.print(*parts, sep="\n")
    print(re.sub(r" +(\x1b\[0m)?$", r"\1", drawn.get(), flags=re.MULTILINE), end="")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Collection[str] = (), rule: bool = False
) -> Table:
    """Aligned columns.

    Args:
        head: titles of the columns.
        rows: cells.
        numbers: titles of the columns that are aligned on the right.
        rule: whether a line stands below the head.

    Returns:
        To be handed to `show`.
    """
    box = SIMPLE_HEAD if rule else None
    made = Table(box=box, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for title in head:
        made.add_column(title, justify="right" if title in numbers else "left")
    for row in rows:
        made.add_row(*row)
    return made

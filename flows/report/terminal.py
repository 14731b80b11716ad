"""Terminal output with rich: colors on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rlcore.system.printable import printable

UNLIMITED = 10_000  # columns


def console(stream: TextIO | None) -> Console:
    """Return a console of the package `rich` for a stream.

    The environment variable NO_COLOR and `TERM=dumb` turn colors off. `sys.stdout`, for example, may be None.
    """
    terminal = stream is not None and stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,  # files get no control characters, even with FORCE_COLOR or in notebooks
        force_jupyter=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=None if terminal else UNLIMITED,
        markup=False,  # rich would read the square brackets of intervals as markup
        highlight=False,
        emoji=False,
    )


class Printable:
    """Renderable that wraps another renderable and escapes control characters in its text; it keeps the styles."""

    def __init__(self, part: RenderableType) -> None:
        self.part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the wrapped renderable and escape the control characters in the text of each segment."""
        for segment in console.render(self.part, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def show(*parts: RenderableType) -> None:
    """Print parts one below the other on standard output.

    This function does not break long lines. The terminal wraps them, so a long path that is copied from the terminal
    contains no line break.
    """
    out = console(sys.stdout)
    out.width = UNLIMITED
    with out.capture() as drawn:
        out.print(*map(Printable, parts), sep="\n")
    sys.stdout.write(re.sub(r" +(\x1b\[0m)?$", r"\1", drawn.get(), flags=re.MULTILINE))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Collection[str] = (), rule: bool = False
) -> Table:
    """Return a table for the terminal.

    Args:
        head: titles of the columns.
        rows: cells of each row.
        numbers: titles of the columns that are right-aligned.
        rule: draw a line below the titles.

    Returns:
        The table.
    """
    box = SIMPLE_HEAD if rule else None
    grid = Table(box=box, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for title in head:
        grid.add_column(title, justify="right" if title in numbers else "left")
    for row in rows:
        grid.add_row(*row)
    return grid


def long_table(head: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Collection[str] = ()) -> Text:
    """Return a table with many rows as one text, which is rendered ten times faster than `table`.

    Args:
        head: titles of the columns.
        rows: cells of each row, without line breaks. The last column is not padded.
        numbers: titles of the columns that are right-aligned.

    Returns:
        The table.
    """
    cells = [[(printable(str(cell)), cell.style if isinstance(cell, Text) else "") for cell in row] for row in rows]
    cells.insert(0, [(title, "dim") for title in head])
    widths = [max(cell_len(row[column][0]) for row in cells) for column in range(len(head))]
    drawn = Text()
    for row in cells:
        for title, width, (text, style) in zip(head, widths, row, strict=True):
            gap = " " * (width - cell_len(text)) if title != head[-1] or title in numbers else ""
            drawn.append(gap + text if title in numbers else text + gap, style or None)
            drawn.append("\n" if title == head[-1] else "  ")
    drawn.rstrip()
    return drawn

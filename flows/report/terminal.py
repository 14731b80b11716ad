"""Drawing with rich: colours on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rlcore.system.printable import printable

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


class Printable:
    """A renderable whose text has its control characters escaped; colours and styles are kept."""

    def __init__(self, part: RenderableType) -> None:
        self.part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the part and escape the text of each segment."""
        for segment in console.render(self.part, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def show(*parts: RenderableType) -> None:
    """Print parts below each other on standard output.

    Lines are as long as what they hold: a terminal too narrow for a table or a path breaks them itself, and what is
    copied from it is whole.
    """
    out = console(sys.stdout)
    out.width = UNLIMITED
    with out.capture() as drawn:
        out.print(*map(Printable, parts), sep="\n")
    sys.stdout.write(re.sub(r" +(\x1b\[0m)?$", r"\1", drawn.get(), flags=re.MULTILINE))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Collection[str] = (), rule: bool = False
) -> Table:
    """Columns below their titles, those named in `numbers` aligned on the right; a rule may stand below the head."""
    box = SIMPLE_HEAD if rule else None
    made = Table(box=box, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for title in head:
        made.add_column(title, justify="right" if title in numbers else "left")
    for row in rows:
        made.add_row(*row)
    return made

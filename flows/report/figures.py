"""Matplotlib figures as files (PNG; SVG and PDF for papers) and as SVG elements in HTML pages."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.store.directory import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, suitable for all kinds of color vision; pages use lighter ones in dark mode.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f3c8d")
INK, SOFT, GRID = "#222221", "#6b6b6a", "#dddddc"  # text, minor text, grid; `_theme` needs three different colors
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "shepherd", "font.size": 10.5, "pdf.fonttype": 42}
WIDTH, HEIGHT = 5.2, 3.5  # inches; at this width text is readable on a phone
FORMS = ("png", "svg", "pdf")
# The files contain no dates, so that the same figure always results in the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Picture:
    """Picture in several formats. The same figure results in the same bytes.

    Attributes:
        stem: name of the picture's files without extension.
        title: title of the picture in an HTML page.
        caption: explanation below the picture in an HTML page; may be empty.
        inline: SVG element for an HTML page.
        figure: the Matplotlib figure, from which the files are drawn when they are needed.
    """

    stem: str
    title: str
    caption: str
    inline: str
    figure: Figure

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """Format ("png", "svg", "pdf") -> content, on a white background."""
        self.figure.patch.set_visible(True)
        with drawing():
            return {form: draw_file(self.figure, form) for form in FORMS}

    @property
    def png(self) -> bytes:
        """Content of the PNG file."""
        return self.files["png"]


@contextmanager
def drawing() -> Iterator[None]:
    """Context manager that sets Matplotlib's style to that of this project's pictures."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def draw_file(figure: Figure, form: str) -> bytes:
    """Return the content of the file of a figure in a format ("png", "svg" or "pdf"), on a white background."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, facecolor="white", metadata=METADATA[form])
    return drawn.getvalue()


def empty_figure(width: float, height: float, dpi: int, layout: Any = None) -> Figure:
    """Return a Matplotlib figure without panels, of this size in inches.

    pyplot is not used, because it keeps a reference to every figure, and is not safe in Prefect's task threads.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def new_figure(rows: int = 1, columns: int = 1, height: float = HEIGHT, width: float = WIDTH) -> tuple[Figure, Any]:
    """Return a Matplotlib figure, and its panel or, if there are several, an array [rows, columns] of panels.

    `height` and `width` are in inches.
    """
    figure = empty_figure(width, height, dpi=200, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(SOFT)
        axes.tick_params(color=SOFT, labelcolor=INK)
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, panels if rows * columns > 1 else panels[0, 0]


def label(figure: Figure, axes: Axes, x: str, y: str) -> None:
    """Label the axes of a panel with `x` and `y`, and add a legend of the lines that have a label."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")))
    labelled = {str(line.get_label()): str(line.get_color()) for line in axes.lines}
    legend(figure, {label: tone for label, tone in labelled.items() if not label.startswith("_")})


def legend(figure: Figure, colours: Mapping[str, str]) -> None:
    """Add a legend above the panels of a figure; `colours` is text -> color."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=tone, linewidth=3, label=name) for name, tone in colours.items()]
    columns = len(handles) if sum(len(name) + 6 for name in colours) <= 50 else 1
    figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, frameon=False, labelcolor=INK, handlelength=1.2
    )


def picture(figure: Figure, stem: str, title: str, caption: str = "") -> Picture:
    """Convert a Matplotlib figure to a `Picture`; `stem` is the name of its files without extension."""
    figure.patch.set_visible(False)
    inline = io.StringIO()
    figure.savefig(inline, format="svg", metadata=METADATA["svg"])
    return Picture(stem, title, caption, _theme(inline.getvalue()), figure)


def save(pictures: Iterable[Picture], folder: Path) -> None:
    """Write pictures to a folder, each as a PNG, an SVG and a PDF file."""
    for drawn in pictures:
        for form, data in drawn.files.items():
            write_bytes(folder / f"{drawn.stem}.{form}", data)


def _theme(svg: str) -> str:
    """Convert the content of an SVG file to an SVG element for an HTML page.

    The element adapts to the width of the page. Its colors are replaced by CSS variables of the page, so that they fit
    the light and the dark theme.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*" ', r"<svg \1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)width="[^"]*" ', r"\1", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    variables = {INK: "--ink", SOFT: "--soft", GRID: "--grid"}
    variables |= {tone: f"--side-{index}" for index, tone in enumerate(COLOURS)}
    return re.sub(
        r"#[0-9a-f]{6}", lambda found: f"var({variables[found[0]]})" if found[0] in variables else found[0], svg
    )

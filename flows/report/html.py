"""HTML pages for reports. A page is one file that needs no scripts and no network access.

It has a light and a dark theme, and its layout adapts to wide and narrow screens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

from flows.report.figures import Picture
from rlcore.system.printable import printable

STYLE = """
:root { --font: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color-scheme: light dark;
  --paper: #ffffff; --card: #f6f6f4; --ink: #1d1d1f; --soft: #62626a; --grid: #dddddc;
  --good: #00704f; --wait: #9a5b00; --side-0: #0072b2; --side-1: #c65500; --side-2: #00875f; --side-3: #b45a90;
  --side-4: #b07800; --side-5: #2b8fc9; --side-6: #8c6d31; --side-7: #7f3c8d; }
@media (prefers-color-scheme: dark) { :root { --paper: #131416; --card: #1d1f23; --ink: #ececee; --soft: #a3a5ad;
  --grid: #34373d; --good: #4cc9a0; --wait: #f0b45a; --side-0: #56aee8; --side-1: #ff8b45; --side-2: #37c795;
  --side-3: #e9a3cb; --side-4: #f2c14e; --side-5: #8fd0f5; --side-6: #cbb07a; --side-7: #c58ad2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 1.2rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 var(--font); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .4rem 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, li { max-width: 46rem; }
small, figcaption, .soft { color: var(--soft); font-size: .87rem; }
.verdict { background: var(--card); border-left: 5px solid var(--wait); border-radius: 6px; padding: .8rem 1rem;
  margin: 1rem 0; overflow-wrap: anywhere; }
.verdict.ranked { border-color: var(--good); }
.verdict strong { font-size: 1.12rem; }
.verdict ul { padding-left: 1.1rem; margin: .5rem 0 0; }
pre { background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; padding: .5rem .7rem;
  margin: .5rem 0 0; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.4rem 2rem;
  margin-bottom: 1.4rem; }
.wide { margin-bottom: 1.4rem; overflow-x: auto; }
.wide svg { min-width: 44rem; }
.part { border-top: 2px solid var(--grid); margin-top: 3rem; }
.pictures > figure:only-child { max-width: 34rem; }
figure { margin: 0; min-width: 0; }
figure h3 { font-size: 1rem; margin: 0 0 .2rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font-family: var(--font) !important; }
.scroll { overflow-x: auto; margin: .3rem 0 .8rem; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--grid), transparent) left / .8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--grid), transparent) right / .8rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom; }
th, td { padding: .28rem .9rem .28rem 0; border-bottom: 1px solid var(--grid); }
td { vertical-align: top; }
td:first-child { white-space: nowrap; }
td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
.chip { display: inline-block; width: .75rem; height: .75rem; border-radius: 3px; margin-right: .45rem; }
.side { white-space: nowrap; }
details { margin: .6rem 0; } summary { cursor: pointer; }
"""


HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
"""


def document(title: str, *parts: str) -> str:
    """Return an HTML document with a title and parts, which must be HTML; control characters are escaped."""
    return printable(HEAD.format(title=escape(title), style=STYLE) + "".join(parts) + "</body></html>\n")


def section(title: str, *parts: str) -> str:
    """Return a section of a page: a heading, followed by parts, which must be HTML."""
    return f"<h2>{title}</h2>\n{''.join(parts)}\n"


def figures(pictures: Iterable[Picture]) -> str:
    """Return pictures as HTML, with titles and captions, in a grid that adapts to the width of the page."""
    return f'<div class="pictures">{"".join(map(_figure, pictures))}</div>\n'


def _figure(picture: Picture) -> str:
    title = escape(picture.title)
    drawn = picture.inline.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    return f"<figure><h3>{title}</h3>{drawn}{caption}</figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """Return an HTML table.

    A table that is wider than the page can be scrolled; a shadow marks the side on which more columns are hidden.

    Args:
        head: titles of the columns. A title may be wrapped after `_` and `.`.
        rows: cells of each row; they must be HTML.
        numbers: titles of the columns that are right-aligned.

    Returns:
        The table as HTML.
    """
    kinds = [' class="number"' if title in numbers else "" for title in head]
    titles = [re.sub(r"[_.]", r"\g<0><wbr>", escape(title)) for title in head]
    top = "".join(f"<th{kind}>{title}</th>" for title, kind in zip(titles, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>\n'

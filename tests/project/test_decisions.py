"""The index of docs/decisions.md lists every decision, with its status."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs/decisions.md").read_text()


def test_decision_index_lists_every_decision() -> None:
    heads = re.findall(r"^## (\d+)\. (.+)$", PAGE, re.MULTILINE)
    rows = re.findall(r"^\| (\d+) \| \[(.+)\]\(#([\w-]+)\) \| (stands|overtaken)", PAGE, re.MULTILINE)
    assert [(number, title) for number, title, _, _ in rows] == heads
    assert [int(number) for number, _ in heads] == list(range(1, len(heads) + 1))
    for number, title, anchor, _ in rows:  # anchors as on GitHub
        assert anchor == re.sub(r"[^\w\- ]", "", f"{number}. {title}".lower()).replace(" ", "-")


def test_overtaken_decision_is_one_line() -> None:
    for number in re.findall(r"^\| (\d+) \| .* \| overtaken", PAGE, re.MULTILINE):
        entry = re.search(rf"^## {number}\. .+\n\n(?P<body>(?:.+\n)+)", PAGE, re.MULTILINE)
        assert entry is not None and entry["body"].startswith("Overtaken") and entry["body"].count("\n") == 1

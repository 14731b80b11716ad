"""Pictures for HTML pages and for papers."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from flows.report.figures import drawing, new_figure, picture


def test_picture_draws_files_only_if_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    savefig = Figure.savefig

    def record(self: Figure, *arguments: Any, format: str, **settings: Any) -> None:
        drawn.append(format)
        savefig(self, *arguments, format=format, **settings)

    monkeypatch.setattr(Figure, "savefig", record)
    with drawing():
        result = picture(new_figure()[0], "stem", "title")
    assert drawn == ["svg"]  # only the inline SVG; the files take two thirds of the time
    assert result.png.startswith(b"\x89PNG") and result.files["pdf"].startswith(b"%PDF")
    assert drawn == ["svg", "png", "svg", "pdf"]

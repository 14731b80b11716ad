"""A run with nothing but its start, and what `show` prints on a terminal or into a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import RenderableType

from flows.report.terminal import show
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog

Printed = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "cart")
    EventLog(run.events).append("start", run_id="r1", algo="ppo", env_id="CartPole-v1", seed=42)
    return run


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What `show` prints: into a file, or on a terminal of so many columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def to(*parts: RenderableType, columns: int | None = None, encoding: str = "utf-8") -> str:
        bytes_ = io.BytesIO()
        stream = io.TextIOWrapper(bytes_, encoding)
        monkeypatch.setattr(stream, "isatty", lambda: columns is not None, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        with monkeypatch.context() as patched:
            patched.setattr("sys.stdout", stream)
            show(*parts)
        stream.flush()
        return bytes_.getvalue().decode(encoding)

    return to

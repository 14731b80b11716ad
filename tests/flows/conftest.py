"""Fixtures for tests of the flows: a home with real MLflow on SQLite per module, and the output of `show`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import RenderableType

from flows.report.terminal import show
from tests.stores import furnish

Printed = Callable[..., str]
OWNED = ("PREFECT_", "MLFLOW_", "_MLFLOW_", "SHEPHERD_")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new project home per test module, with empty stores."""
    folder = tmp_path_factory.mktemp("home")
    furnish(folder)
    before = {name: value for name, value in os.environ.items() if name.startswith(OWNED) and name != "SHEPHERD_WARM"}
    for name in before:
        del os.environ[name]
    os.environ["SHEPHERD_HOME"] = str(folder)
    from flows.settings import configure_environment

    configure_environment()
    yield folder
    for name in [name for name in os.environ if name.startswith(OWNED) and name != "SHEPHERD_WARM"]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """A function that returns the output of `show` in a file or, with `columns`, on a terminal of that width."""
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

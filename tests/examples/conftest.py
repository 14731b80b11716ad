"""Fixture of the tests of a plugin in examples/."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from rlcore import plugins


@pytest.fixture
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's working directory is the folder `EXAMPLE` of the test module; its plugin has the folder's name."""
    example = request.module.EXAMPLE
    monkeypatch.chdir(example)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    if (example / "conf").is_dir():
        monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "conf")
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    sys.modules.pop(example.name, None)

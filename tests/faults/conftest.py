"""Fixtures: environments with faults, also in processes that a test starts, and a disk with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.failing_disk import compiled


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.faults.faulty_envs")
    monkeypatch.delenv("FAULT", raising=False)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes operations on files fail."""
    return compiled(tmp_path_factory.mktemp("library"))

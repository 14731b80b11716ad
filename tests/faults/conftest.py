"""Registers the environments of `faulty_envs` in this process and in the processes that it starts."""

from __future__ import annotations

import pytest


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.faults.faulty_envs")
    monkeypatch.delenv("FAULT", raising=False)

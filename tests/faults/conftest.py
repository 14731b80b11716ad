"""The environments of `faulty_envs` can be made in this process and in those that it starts."""

from __future__ import annotations

import pytest


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.faults.faulty_envs")
    monkeypatch.delenv("FAULT", raising=False)

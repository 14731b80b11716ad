"""The environments of `faulty_envs` can be made in this process and in those that it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SHEPHERD_PLUGINS", "faulty_envs")
    monkeypatch.delenv("FAULT", raising=False)

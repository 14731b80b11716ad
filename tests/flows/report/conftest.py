"""Fixture: run with only a start event."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "cart")
    EventLog(run.events).append("start", run_id="r1", algo="ppo", env_id="CartPole-v1", seed=42)
    return run

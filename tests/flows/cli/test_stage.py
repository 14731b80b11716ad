"""Copy to MLflow during `shepherd stage train`: made for servers, and for long runs in a local database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.cli import stage
from flows.runs.listeners import emit
from rlcore.store.directory import RunDirectory

SERVER = "http://127.0.0.1:5000"


@pytest.mark.parametrize(
    ("uri", "seconds", "log_level", "expected_calls"),
    [
        ("sqlite:///mlflow.db", 5.0, 1, 0),  # a short run, which register-model sends to MLflow
        ("sqlite:///mlflow.db", 40.0, 1, 3),
        (SERVER, 5.0, 1, 4),
        (SERVER, 5.0, 0, 3),  # no metrics to mirror after the last checkpoint
    ],
)
def test_stage_train_mirrors_if_server_or_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, seconds: float, log_level: int, expected_calls: int
) -> None:
    now, calls = [100.0], []
    config: dict[str, Any] = {"metric": {"log_level": log_level, "logger": {"tracking_uri": uri}}}
    monkeypatch.setattr(RunDirectory, "read_config", lambda self: config)
    monkeypatch.setattr(stage.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stage, "mirror_in_background", lambda run, every=30.0, last=False: calls.append(every))
    with stage._mirror(RunDirectory(tmp_path)):
        for kind in ("checkpoint", "evaluation", "progress", "checkpoint"):
            emit(kind, {})
            now[0] += seconds
    assert len(calls) == expected_calls

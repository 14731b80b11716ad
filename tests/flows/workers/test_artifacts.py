"""Prefect artifacts that show a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from flows.runs.listeners import emit
from flows.workers import artifacts
from rlcore.store.directory import FORMAT, RunDirectory, write_json

GREEDY = {"mean": 500.04, "ci95": [499.96, 500.0], "episodes": 100}
SUMMARY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "ALE/Pong-v5",
    "seed": 7,
    "policy_steps": 100,
    "env_steps": 97,
    "updates": 3,
    "wall_s": 1.0,
    "cpu_s": 1.0,
    "policy_steps_per_s": 100.0,
    "eval": {"greedy": GREEDY, "stochastic": None},
    "baseline": {"mean": None},
    "model": None,
    "checkpoint": "checkpoints/100",
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    write_json(run.identity, {"format": FORMAT, "run_id": "r1", "algo": "ppo", "env_id": "ALE/Pong-v5", "seed": 7})
    return run


def test_show_results_creates_table_report_and_images(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: dict[str, tuple[Any, str]] = {}
    for kind in ("table", "markdown", "image"):
        monkeypatch.setattr(
            f"prefect.artifacts.create_{kind}_artifact",
            lambda content, key, description: created.update({key: (content, description)}),
        )
    curve = tmp_path / "curve.png"
    curve.write_bytes(b"\x89PNG")
    artifacts.show_results(run, SUMMARY, curve)
    assert len(created) == 3  # no images
    run.media.mkdir()
    run.inputs.write_bytes(b"\x89PNG")
    artifacts.show_results(run, SUMMARY, curve)
    sees = f"network inputs: {run.inputs}"
    assert created["inputs-ppo-ale-pong-v5"] == ("data:image/png;base64,iVBORw==", sees)
    row = {"policy": "greedy policy", "mean return": 500.0, "95 % interval": "[500.0, 500.0]", "episodes": 100}
    assert created["results-ppo-ale-pong-v5"] == ([row], "returns of ppo ALE/Pong-v5")
    page, title = created["report-ppo-ale-pong-v5"]
    assert title == "results of ppo ALE/Pong-v5"
    assert "| greedy | 100 | 500.0 |" in page
    assert page.endswith(f"Run directory: `{run.path}`\n")
    assert created["learning-curve-ppo-ale-pong-v5"] == ("data:image/png;base64,iVBORw==", f"learning curve: {curve}")


def test_show_progress_warns_when_server_is_unavailable(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*arguments: Any) -> None:
        raise ConnectionError("nobody answers")

    (run.path / "config.yaml").write_text("algo: {total_steps: 100}\n")
    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", away)
    with caplog.at_level(logging.WARNING), artifacts.show_progress(run):
        emit("progress", {"policy_steps": 100})
    assert "not shown in Prefect: ConnectionError: nobody answers" in caplog.text

"""Checkpoints, evaluations and points are counted in policy steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.stages.summary import summarise
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

SETTINGS: dict[str, Any] = {
    "total_steps": 512,
    "checkpoint__every": 64,
    "checkpoint__keep_last": None,
    "evaluation__every": 128,
    "metric__log_every": 128,
}


def train(run: RunDirectory, until: int = 512) -> str:
    """Train with checkpoints and evaluations at boundaries; return the digest of the last checkpoint."""
    session, progress, digest = RunTrainer(run), [], ""
    while session.policy_steps < until or session.owed:
        at = session.advance(progress.append)
        if "checkpoint" in at.due:
            digest = session.save()["digest"]
        if "evaluate" in at.due:
            session.evaluate()
    session.close()
    assert all("env_steps" not in said for said in progress)
    return digest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, str]:
    run = prepare(tmp_path_factory.mktemp("runs") / "whole", **SETTINGS)
    return run, train(run)


def test_evaluations_leave_scheduled_checkpoints(tmp_path: Path) -> None:
    settings = {"checkpoint__every": 128, "checkpoint__keep_last": 3, "evaluation__every": 64}
    run = prepare(tmp_path / "run", **(SETTINGS | settings))
    train(run)
    names = {path.name for path in checkpoint.newest_first(run.checkpoints)}
    assert {"256", "384", "512"} <= names and len(names) <= 4  # and the best one when 512 was written


def test_run_counts_everything_in_policy_steps(whole: tuple[RunDirectory, str]) -> None:
    run, _ = whole
    events = list(read_events(run.events))
    moments = {kind: [e["policy_steps"] for e in events if e["kind"] == kind] for kind in ("metrics", "evaluation")}
    assert moments == {"metrics": [128, 256, 384, 512], "evaluation": [128, 256, 384, 512]}
    assert [path.name for path in checkpoint.newest_first(run.checkpoints)] == [str(at) for at in range(512, 0, -64)]
    assert all(e["env_steps"] < e["policy_steps"] for e in events if e["policy_steps"] > 64)  # rows that only reset
    assert (summarise(run)["policy_steps"], summarise(run)["env_steps"]) == (512, events[-1]["env_steps"])

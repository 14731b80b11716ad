"""A trainer's words over its protocol while something takes long."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from rlcore.train import calls, trainer
from tests.runs import prepare


def test_an_evaluation_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WORK_EVERY", 0.0)
    output = io.StringIO()
    process = trainer.Trainer(prepare(tmp_path / "run"), output)
    for command in ("evaluate", "stop"):
        process.commands.put({"command": command})
    assert process.serve() == 0
    said = [json.loads(line) for line in output.getvalue().splitlines()]
    work = [{key: e[key] for key in ("doing", "done", "total")} for e in said if e["event"] == "work"]
    assert work[0] == {"doing": "evaluation", "done": 0, "total": 2}
    assert work[-1] == {"doing": "evaluation", "done": 2, "total": 2}
    assert [e["event"] for e in said if e["event"] != "work"] == ["ready", "evaluation", "stopped"]


@pytest.mark.parametrize(("long", "told"), [(0.0, [1, 2, 3, 4]), (1e9, [])], ids=["long", "short"])
def test_an_update_that_takes_long_says_how_many_of_its_gradient_steps_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: float, told: list[int]
) -> None:
    monkeypatch.setattr(calls, "WORK_EVERY", 0.0)
    monkeypatch.setattr(trainer, "LONG_UPDATE", long)
    sac: dict[str, Any] = {"algo.learning_starts": 3, "algo.per_rank_batch_size": 4, "algo.per_rank_pretrain_steps": 4}
    every: dict[str, Any] = {"env.num_envs": 1, "checkpoint.every": 4, "evaluation.every": 4}
    output = io.StringIO()
    run = prepare(tmp_path / "run", "Pendulum-v1", 4, algo="sac", **sac, **every)
    process = trainer.Trainer(run, output)
    for command in ("advance", "stop"):
        process.commands.put({"command": command})
    assert process.serve() == 0
    work = [event for line in output.getvalue().splitlines() if (event := json.loads(line))["event"] == "work"]
    # The fourth policy step is the first after learning_starts: it owes one gradient step, and the four of pretraining.
    assert work == [
        {"event": "work", "doing": "update", "done": done, "total": 5, "unit": "gradient steps"} for done in told
    ]

"""A trainer's words over its protocol while something takes long."""

from __future__ import annotations

import io
import json
from pathlib import Path

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

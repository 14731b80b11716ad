"""Messages of the trainer process over its protocol during long operations."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.system.printable import DETAIL
from rlcore.train import calls, server
from tests.runs import prepare


def test_server_reports_progress_of_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WORK_EVERY", 0.0)
    output = io.StringIO()
    process = server.TrainerServer(prepare(tmp_path / "run"), output)
    for command in ("evaluate", "stop"):
        process.commands.put({"command": command})
    assert process.serve() == 0
    messages = [json.loads(line) for line in output.getvalue().splitlines()]
    work = [{key: e[key] for key in ("doing", "done", "total")} for e in messages if e["event"] == "work"]
    assert work[0] == {"doing": "evaluation", "done": 0, "total": 2}
    assert work[-1] == {"doing": "evaluation", "done": 2, "total": 2}
    assert [e["event"] for e in messages if e["event"] != "work"] == ["ready", "evaluation", "stopped"]


def test_server_reports_end_of_imports_before_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, output = list[str](), io.StringIO()
    monkeypatch.setattr(server, "load", lambda algorithm: order.append(f"imports for {algorithm}{output.getvalue()}"))
    process = server.TrainerServer(prepare(tmp_path / "run"), output)
    process.commands.put({"command": "begin"})
    assert process.wait_for_begin()
    assert order == ["imports for ppo"] and json.loads(output.getvalue()) == {"event": "imported"}


def test_announcer_sends_no_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, logger = io.StringIO(), logging.getLogger("tests.announced")
    monkeypatch.setattr(logger, "handlers", [server.Announcer(server.TrainerServer(RunDirectory(tmp_path), output))])
    logger.warning("for the terminal")
    logger.warning("for run.log", extra=DETAIL)
    assert [json.loads(line) for line in output.getvalue().splitlines()] == [
        {"event": "doing", "sentence": "for the terminal"}
    ]


@pytest.mark.parametrize(("long", "reported"), [(0.0, [1, 2, 3, 4]), (1e9, [])], ids=["long", "short"])
def test_server_reports_gradient_steps_of_long_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: float, reported: list[int]
) -> None:
    monkeypatch.setattr(calls, "WORK_EVERY", 0.0)
    monkeypatch.setattr(server, "LONG_UPDATE", long)
    sac: dict[str, Any] = {"algo.learning_starts": 3, "algo.per_rank_batch_size": 4, "algo.per_rank_pretrain_steps": 4}
    every: dict[str, Any] = {"env.num_envs": 1, "checkpoint.every": 4, "evaluation.every": 4}
    output = io.StringIO()
    run = prepare(tmp_path / "run", "Pendulum-v1", 4, algo="sac", **sac, **every)
    process = server.TrainerServer(run, output)
    for command in ("advance", "stop"):
        process.commands.put({"command": command})
    assert process.serve() == 0
    work = [event for line in output.getvalue().splitlines() if (event := json.loads(line))["event"] == "work"]
    # The fourth policy step is the first after learning_starts: it owes one gradient step, and the four of pretraining.
    assert work == [
        {"event": "work", "doing": "update", "done": done, "total": 5, "unit": "gradient steps"} for done in reported
    ]


def test_interrupted_update_is_repeated_from_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sac: dict[str, Any] = {"algo.learning_starts": 3, "algo.per_rank_batch_size": 4, "algo.per_rank_pretrain_steps": 4}
    every: dict[str, Any] = {"env.num_envs": 1, "checkpoint.every": 2, "evaluation.every": 4}

    def ended(run: RunDirectory, *commands: str) -> tuple[server.TrainerServer, io.StringIO]:
        process = server.TrainerServer(run, output := io.StringIO())
        for command in commands:
            process.commands.put({"command": command})
        return process, output

    broken, whole = (prepare(tmp_path / name, "Pendulum-v1", 4, algo="sac", **sac, **every) for name in ("a", "b"))
    process, output = ended(broken, "advance", "checkpoint", "advance")
    update = process._update

    def signalled() -> Any:
        def on_batch(done: int, total: int) -> None:
            process.interrupted = done == 2  # out of five at the third policy step
            monkeypatch.setattr(server, "LONG_UPDATE", 0.0)
            of_update(done, total)

        of_update = update()
        return on_batch

    monkeypatch.setattr(process, "_update", signalled)
    with pytest.raises(server.Interrupted):
        process.serve()
    assert process.interrupt() == 130
    messages = json.loads(output.getvalue().splitlines()[-1])
    assert messages["event"] == "interrupted" and messages["path"] is None
    assert messages["lost"].startswith("interrupted after 2 of 5 gradient steps of an iteration, 0 s before its end: ")
    assert messages["lost"].endswith(": the run resumes from policy step 2 of 3, its last checkpoint")
    monkeypatch.undo()
    assert ended(broken, "advance", "checkpoint", "stop")[0].serve() == 0
    assert ended(whole, "advance", "checkpoint", "advance", "checkpoint", "stop")[0].serve() == 0
    newest = [
        [e["tensors"] for e in read_events(run.events) if e["kind"] == "checkpoint"][-1] for run in (broken, whole)
    ]
    assert newest[0] == newest[1]


def test_load_imports_only_algorithm_of_run() -> None:
    asked = "import sys; from rlcore.train.server import load; load('a2c'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    found = {part for name in modules if name.startswith("rlcore.algorithms.") for part in name.split(".")}
    assert "a2c" in found and not found & {"ppo_recurrent", "sac", "sac_ae", "dreamer_v1", "dreamer_v2", "dreamer_v3"}

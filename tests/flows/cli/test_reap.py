"""`shepherd reap` lists the runs whose process died and sets their status `died`; it changes no other run."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import main as cli
from flows.sweeps.mlflow_parent import _run_of
from flows.tracking.backends import update_backends
from flows.tracking.mlflow_sweep import PARENT
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog, read_events
from tests.flows.sweeps.fake import make_sweep
from tests.flows.synthetic_runs import checkpointed_run, record_final_evaluation, synthetic_run, train_a_while
from tests.processes import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")]
DRIVER = """
import sys, time
from rlcore.store.directory import RunDirectory
with RunDirectory(sys.argv[1]).driving():
    print("driving", flush=True)
    time.sleep(600)
"""
Reap = Callable[..., dict[str, Any]]


@pytest.fixture
def reap(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reap:
    """Run `shepherd reap --json` in the parent of `runs` and return its output."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> dict[str, Any]:
        assert cli.main(["reap", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return command


def start_driver(run: RunDirectory) -> subprocess.Popen[str]:
    """Start a process that holds the driver lock of a run."""
    command = [sys.executable, "-c", DRIVER, str(run.path)]
    process = subprocess.Popen(command, env=environment(ROOT), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "driving\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def mlflow_status(home: Path, run: RunDirectory) -> str:
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        query = "select status from runs where run_uuid in (select run_uuid from tags where value = ?)"
        return store.execute(query, (run.read_identity()["run_id"],)).fetchone()[0]


def test_reap_marks_killed_run_once(home: Path, tmp_path: Path, reap: Reap, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpointed_run(tmp_path / "runs/ppo/one", "killed", weights=1)
    train_a_while(run, 0, 4100)
    update_backends(run)
    process = start_driver(run)
    before = run.events.read_bytes()
    assert reap()["runs"] == []
    assert (run.events.read_bytes(), mlflow_status(home, run)) == (before, "RUNNING")
    kill(process)
    wanted = {"run_dir": str(run.path), "run_id": "killed", "state": "died", "policy_steps": 4096, "mlflow": True}
    (record,) = reap()["runs"]
    assert record.items() >= (wanted | {"marked": False}).items()
    assert record["resume"].endswith("shepherd resume runs/ppo/one")
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["died"]
    assert (run.read_summary()["status"], mlflow_status(home, run)) == ("died", "KILLED")
    # The run is listed until it is resumed, but it is marked only once.
    (record,) = reap("runs/ppo")["runs"]
    assert record["marked"] is True
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["died"]
    assert cli.main(["reap"]) == 0
    assert "shepherd resume runs/ppo/one" in capsys.readouterr().out
    # After a resume MLflow shows the run as running again.
    EventLog(run.events).append("resume", policy_steps=4096)
    update_backends(run)
    assert mlflow_status(home, run) == "RUNNING"


def test_reap_ignores_ended_and_remote_runs(home: Path, tmp_path: Path, reap: Reap) -> None:
    runs = tmp_path / "runs"
    for status in ("interrupted", "failed"):
        run = synthetic_run(runs / status, status)
        EventLog(run.events).append("end", status=status, policy_steps=0, reason="signal")
    finished = checkpointed_run(runs / "finished", "finished", weights=2)
    EventLog(finished.events).append("end", status="finished", policy_steps=4096, reason="finished")
    record_final_evaluation(finished)
    write_json(finished.summary, {"status": "finished"})
    EventLog(finished.events).append("registered", name="m", version=1, aliases=[])
    EventLog(finished.events).append("resume", policy_steps=4096)  # evaluated again
    set_aside_run = synthetic_run(finished.set_aside / "older", "older")
    elsewhere = synthetic_run(runs / "elsewhere", "elsewhere")
    elsewhere.driver.write_text("pid 7 on another-machine")
    before = {path: path.read_bytes() for path in runs.rglob("events.jsonl")}
    assert set_aside_run.events in before
    result = reap()
    assert result == {"runs": [], "elsewhere": [{"run_dir": str(elsewhere.path), "host": "another-machine"}]}
    assert {path: path.read_bytes() for path in runs.rglob("events.jsonl")} == before
    assert [record["run_id"] for record in reap("--elsewhere")["runs"]] == ["elsewhere"]


def test_reap_names_resume_command_with_plugins_and_sweep(home: Path, tmp_path: Path, reap: Reap) -> None:
    run = checkpointed_run(tmp_path / "runs/mine", "mine", weights=6)
    run.config.write_text(yaml.safe_dump(run.read_config() | {"plugins": ["my_dqn"]}))
    checkpointed_run(tmp_path / "runs/sweeps/first/trial_0000/seed_7", "trial", weights=7)
    commands = {record["run_id"]: record["resume"] for record in reap()["runs"]}
    assert commands["mine"].endswith("resume runs/mine 'plugins=[my_dqn]'")
    assert commands["trial"].endswith("shepherd sweep resume first")


def test_reap_marks_sweep_of_killed_trial(home: Path, tmp_path: Path, reap: Reap) -> None:
    folder = make_sweep(tmp_path / "runs/sweeps", "broken_off", "sweep.trials=2")[0]
    run = checkpointed_run(folder.trial(0) / "seed_7", "trial of a killed sweep", weights=8)
    client, parent = _run_of(folder, run.read_config())
    assert [record["run_id"] for record in reap()["runs"]] == ["trial of a killed sweep"]
    assert client.get_run(parent.info.run_id).info.status == "KILLED"
    trial = client.get_run(update_backends(run))
    assert (trial.info.status, trial.data.tags[PARENT]) == ("KILLED", parent.info.run_id)


def test_reap_lists_finished_run_without_final_evaluation(home: Path, tmp_path: Path, reap: Reap) -> None:
    run = checkpointed_run(tmp_path / "runs/late", "late", weights=3)
    update_backends(run)
    EventLog(run.events).append("end", status="finished", policy_steps=4096, reason="finished")
    before = run.events.read_bytes()
    (record,) = reap()["runs"]
    assert (record["state"], record["run_id"]) == ("unfinished", "late")
    assert (run.events.read_bytes(), mlflow_status(home, run)) == (before, "FINISHED")


def test_reap_continues_after_unreadable_checkpoint(home: Path, tmp_path: Path, reap: Reap) -> None:
    damaged = checkpointed_run(tmp_path / "runs/a", "torn", weights=4)
    manifest = damaged.checkpoints / "4096/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 3', '"format": 4'))  # of a newer version of Shepherd
    checkpointed_run(tmp_path / "runs/b", "whole", weights=5)
    assert [(record["run_id"], record["policy_steps"], record["mlflow"]) for record in reap()["runs"]] == [
        ("torn", 0, True),
        ("whole", 4096, True),
    ]


@pytest.mark.parametrize(("name", "text"), [("config.yaml", ""), ("run.json", "{}"), ("summary.json", "[]")])
def test_reap_continues_after_damaged_run_files(home: Path, tmp_path: Path, reap: Reap, name: str, text: str) -> None:
    damaged = checkpointed_run(tmp_path / "runs/a", f"damaged {name}", weights=4)
    whole = checkpointed_run(tmp_path / "runs/b", f"whole {name}", weights=5)
    (damaged.path / name).write_text(text)
    assert str(whole.path) in [record["run_dir"] for record in reap()["runs"]]


def test_reap_resume_continues_after_failed_run(
    home: Path, tmp_path: Path, reap: Reap, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.cli import reap as command
    from rlcore.errors import RunError

    for name in ("a", "b"):
        synthetic_run(tmp_path / "runs" / name, name)
    resumed: list[str] = []

    def resume(run_dir: str, overrides: tuple[str, ...]) -> None:
        resumed.append(run_dir)
        if run_dir.endswith("a"):
            raise RunError("no disk")

    monkeypatch.setattr(command, "resume", resume)
    assert cli.main(["reap", "--resume"]) == 1
    assert resumed == ["runs/a", "runs/b"]


def test_reap_refuses_missing_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reap", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("shepherd: nowhere: no such folder")

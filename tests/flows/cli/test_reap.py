"""`shepherd reap`: of runs in every state, those whose process is gone, and nothing else, are marked and told."""

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
from tests.flows.sweeps.fake import made
from tests.flows.synthetic_runs import checkpointed_run, judged, synthetic_run, train_a_while
from tests.processes import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")]
LEADS = """
import sys, time
from rlcore.store.directory import RunDirectory
with RunDirectory(sys.argv[1]).driving():
    print("leads", flush=True)
    time.sleep(600)
"""
Reap = Callable[..., dict[str, Any]]


@pytest.fixture
def reap(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reap:
    """The command, typed above a folder `runs`; what it printed as JSON."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> dict[str, Any]:
        assert cli.main(["reap", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return command


def leader(run: RunDirectory) -> subprocess.Popen[str]:
    """A process that leads a run."""
    command = [sys.executable, "-c", LEADS, str(run.path)]
    process = subprocess.Popen(command, env=environment(ROOT), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "leads\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def mlflow_status(home: Path, run: RunDirectory) -> str:
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        query = "select status from runs where run_uuid in (select run_uuid from tags where value = ?)"
        return store.execute(query, (run.read_identity()["run_id"],)).fetchone()[0]


def test_a_run_whose_process_is_killed_is_marked_everywhere_and_goes_on_as_ever(
    home: Path, tmp_path: Path, reap: Reap, capsys: pytest.CaptureFixture[str]
) -> None:
    run = checkpointed_run(tmp_path / "runs/ppo/one", "killed", weights=1)
    train_a_while(run, 0, 4100)
    update_backends(run)
    process = leader(run)
    before = run.events.read_bytes()
    assert reap()["runs"] == []
    assert (run.events.read_bytes(), mlflow_status(home, run)) == (before, "RUNNING")
    end(process)
    wanted = {"run_dir": str(run.path), "run_id": "killed", "state": "died", "policy_steps": 4096, "mlflow": True}
    (told,) = reap()["runs"]
    assert told.items() >= (wanted | {"marked": False}).items()
    assert told["resume"].endswith("shepherd resume runs/ppo/one")
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["died"]
    assert (run.read_summary()["status"], mlflow_status(home, run)) == ("died", "KILLED")
    # Again: told as long as nobody goes on with it, and not marked twice.
    (told,) = reap("runs/ppo")["runs"]
    assert told["marked"] is True
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["died"]
    assert cli.main(["reap"]) == 0
    assert "shepherd resume runs/ppo/one" in capsys.readouterr().out
    # It goes on: it has a process again, and MLflow says so.
    EventLog(run.events).append("resume", policy_steps=4096)
    update_backends(run)
    assert mlflow_status(home, run) == "RUNNING"


def test_runs_that_ended_with_a_word_or_are_elsewhere_are_left_alone(home: Path, tmp_path: Path, reap: Reap) -> None:
    runs = tmp_path / "runs"
    for status in ("interrupted", "failed"):
        run = synthetic_run(runs / status, status)
        EventLog(run.events).append("end", status=status, policy_steps=0, reason="signal")
    finished = checkpointed_run(runs / "finished", "finished", weights=2)
    EventLog(finished.events).append("end", status="finished", policy_steps=4096, reason="finished")
    judged(finished)
    write_json(finished.summary, {"status": "finished"})
    EventLog(finished.events).append("registered", name="m", version=1, aliases=[])
    EventLog(finished.events).append("resume", policy_steps=4096)  # judged once more
    aside = synthetic_run(finished.set_aside / "older", "older")
    elsewhere = synthetic_run(runs / "elsewhere", "elsewhere")
    elsewhere.driver.write_text("pid 7 on another-machine")
    before = {path: path.read_bytes() for path in runs.rglob("events.jsonl")}
    assert aside.events in before
    said = reap()
    assert said == {"runs": [], "elsewhere": [{"run_dir": str(elsewhere.path), "host": "another-machine"}]}
    assert {path: path.read_bytes() for path in runs.rglob("events.jsonl")} == before
    assert [one["run_id"] for one in reap("--elsewhere")["runs"]] == ["elsewhere"]


def test_how_each_goes_on_is_told_with_its_plugins_and_its_sweep(home: Path, tmp_path: Path, reap: Reap) -> None:
    mine = checkpointed_run(tmp_path / "runs/mine", "mine", weights=6)
    mine.config.write_text(yaml.safe_dump(mine.read_config() | {"plugins": ["my_dqn"]}))
    checkpointed_run(tmp_path / "runs/sweeps/first/trial_0000/seed_7", "trial", weights=7)
    told = {one["run_id"]: one["resume"] for one in reap()["runs"]}
    assert told["mine"].endswith("resume runs/mine 'plugins=[my_dqn]'")
    assert told["trial"].endswith("shepherd sweep resume first")


def test_a_sweep_that_was_killed_counts_as_killed_beside_its_trial(home: Path, tmp_path: Path, reap: Reap) -> None:
    folder = made(tmp_path / "runs/sweeps", "broken_off", "sweep.trials=2")[0]
    run = checkpointed_run(folder.trial(0) / "seed_7", "trial of a killed sweep", weights=8)
    client, parent = _run_of(folder, run.read_config())
    assert [one["run_id"] for one in reap()["runs"]] == ["trial of a killed sweep"]
    assert client.get_run(parent.info.run_id).info.status == "KILLED"
    trial = client.get_run(update_backends(run))
    assert (trial.info.status, trial.data.tags[PARENT]) == ("KILLED", parent.info.run_id)


def test_a_run_that_died_between_training_and_its_last_evaluation_is_told_and_stays_finished(
    home: Path, tmp_path: Path, reap: Reap
) -> None:
    run = checkpointed_run(tmp_path / "runs/late", "late", weights=3)
    update_backends(run)
    EventLog(run.events).append("end", status="finished", policy_steps=4096, reason="finished")
    before = run.events.read_bytes()
    (told,) = reap()["runs"]
    assert (told["state"], told["run_id"]) == ("not judged", "late")
    assert (run.events.read_bytes(), mlflow_status(home, run)) == (before, "FINISHED")


def test_a_run_whose_checkpoint_cannot_be_read_keeps_no_other_from_being_marked(
    home: Path, tmp_path: Path, reap: Reap
) -> None:
    torn = checkpointed_run(tmp_path / "runs/a", "torn", weights=4)
    manifest = torn.checkpoints / "4096/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 3', '"format": 4'))  # of a later version
    checkpointed_run(tmp_path / "runs/b", "whole", weights=5)
    assert [(one["run_id"], one["policy_steps"], one["mlflow"]) for one in reap()["runs"]] == [
        ("torn", 0, True),
        ("whole", 4096, True),
    ]


@pytest.mark.parametrize(("name", "text"), [("config.yaml", ""), ("run.json", "{}"), ("summary.json", "[]")])
def test_a_run_whose_files_are_damaged_hides_no_other(
    home: Path, tmp_path: Path, reap: Reap, name: str, text: str
) -> None:
    damaged = checkpointed_run(tmp_path / "runs/a", f"damaged {name}", weights=4)
    whole = checkpointed_run(tmp_path / "runs/b", f"whole {name}", weights=5)
    (damaged.path / name).write_text(text)
    assert str(whole.path) in [told["run_dir"] for told in reap()["runs"]]


def test_with_resume_each_goes_on_and_one_that_fails_keeps_no_other(
    home: Path, tmp_path: Path, reap: Reap, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.cli import reap as command
    from rlcore.errors import RunError

    for name in ("a", "b"):
        synthetic_run(tmp_path / "runs" / name, name)
    asked: list[str] = []

    def resume(run_dir: str, overrides: tuple[str, ...]) -> None:
        asked.append(run_dir)
        if run_dir.endswith("a"):
            raise RunError("no disk")

    monkeypatch.setattr(command, "resume", resume)
    assert cli.main(["reap", "--resume"]) == 1
    assert asked == ["runs/a", "runs/b"]


def test_a_folder_that_is_not_there_is_a_mistake(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reap", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("shepherd: nowhere: no such folder")

"""`shepherd runs` lists the runs in folders, newest first, without reading whole logs or importing heavy libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main as cli
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import long_log, record_final_evaluation, synthetic_run, train_a_while
from tests.processes import ROOT, environment

HEAVY = ("torch", "numpy", "prefect", "mlflow", "hydra", "gymnasium", "pandas", "tensordict")
MANY = 1000


def created(run: RunDirectory, when: str, **changes: Any) -> RunDirectory:
    """The run, created at another time."""
    write_json(run.identity, run.read_identity() | {"created": f"2026-11-{when}:00+00:00"} | changes)
    return run


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which is also the project's home; it has no databases and no runs."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHEPHERD_RUN_ROOT", raising=False)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield tmp_path
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def folder(nowhere: Path) -> Path:
    """The working directory, with three runs in `runs`."""
    tmp_path = nowhere
    finished = created(synthetic_run(tmp_path / "runs/ppo/CartPole-v1/first", "a", group="low"), "01T10:00")
    train_a_while(finished, 0, 4100, 512)
    EventLog(finished.events).append("end", status="finished", policy_steps=4096, reason="finished")
    record_final_evaluation(finished)
    dead = created(synthetic_run(tmp_path / "runs/slow", "b", seed=7), "02T10:00", algo="sac", env_id="Pendulum-v1")
    train_a_while(dead, 0, 1100, 512)
    created(synthetic_run(tmp_path / "runs/sweeps/search/trial_0000/seed_1", "c"), "01T12:00").events.unlink()
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert cli.main(["runs", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def names(runs: list[dict[str, Any]]) -> list[str]:
    return [run["name"] for run in runs]


def test_runs_are_listed_newest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead, trial, finished = listed(capsys)
    assert (dead["name"], dead["status"], dead["policy_steps"], dead["total_steps"]) == ("slow", "died", 1024, 4096)
    assert (dead["return"], dead["return_from"], dead["algo"]) == (1024.0, "training", "sac")
    assert (trial["name"], trial["status"], trial["return"]) == ("sweeps/search/trial_0000/seed_1", "created", None)
    wanted = {"name": "first", "status": "finished", "return": 300.0, "return_from": "final", "group": "low", "seed": 5}
    assert finished.items() >= wanted.items()
    assert finished["run_dir"] == str(folder / "runs/ppo/CartPole-v1/first")
    assert finished["age_s"] > dead["age_s"]
    assert finished["created"] == "2026-11-01T10:00:00+00:00"


def test_running_run_has_status_training(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(folder / "runs/slow").driving():
        assert listed(capsys, "slow")[0]["status"] == "training"


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("low", ["first"]),  # group
        ("search", ["sweeps/search/trial_0000/seed_1"]),  # sweep
        ("runs/ppo", ["CartPole-v1/first"]),  # folder
        ("runs/s*", ["slow", "search/trial_0000/seed_1"]),  # glob
        ("pendulum", ["slow"]),  # environment
        ("finish", ["first"]),  # status
        ("SAC", ["slow"]),  # algorithm
    ],
)
def test_filter_selects_runs(chosen: str, found: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [name.removeprefix("runs/") for name in names(listed(capsys, chosen))] == found


def test_word_matches_runs_although_a_folder_has_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sac").mkdir()
    assert names(listed(capsys, "sac")) == ["slow"]


def test_last_limits_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(listed(capsys, "--last", "1")) == ["slow"]
    assert cli.main(["runs", "--last", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 3 runs"


def test_table_shows_progress_and_marks_training_return(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 0
    head, dead, trial, finished, note = capsys.readouterr().out.splitlines()
    assert head.split() == ["algorithm", "environment", "seed", "status", "steps", "return", "age", "run"]
    assert dead.split()[:7] == ["sac", "Pendulum-v1", "5", "died", "1,024", "(25%)", "~1,024.0"]
    assert trial.split()[3:6] == ["created", "0", "(0%)"]
    assert finished.split()[3:6] == ["finished", "4,096", "300.0"]
    assert finished.endswith(" d  runs/ppo/CartPole-v1/first")
    assert note.startswith("~ mean return of training episodes")


def test_damaged_run_does_not_hide_others(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "runs/slow/run.json").write_text("{")
    assert names(listed(capsys)) == ["sweeps/search/trial_0000/seed_1", "first"]
    assert "runs/slow/run.json: damaged" in caplog.text


def test_no_runs_name_command_that_trains(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out.startswith("no runs in runs; `shepherd train exp=ppo` trains one")
    assert cli.main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_status_that_no_run_has_gives_empty_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "failed"]) == 0
    assert capsys.readouterr().out == "no run in runs has the status failed\n"
    assert cli.main(["runs", "failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pendulun"], "pendulun: no such group, sweep or folder, and no run in runs contains this word"),
        (["runs/no*"], "runs/no*: no folder matches"),
        (["mlflow:ppo"], "mlflow:ppo: only runs in folders can be listed"),
        (["--last", "0"], "--last 0: must be 1 or more"),
    ],
)
def test_wrong_filter_is_one_sentence(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"shepherd: {message}")
    assert printed.err.count("\n") == 1


def test_many_runs_are_listed_without_slow_imports(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path = nowhere
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    run = synthetic_run(tmp_path / "runs/first", "a")
    long_log(run, 100)
    record_final_evaluation(run)
    EventLog(run.events).append("end", status="finished", policy_steps=10_000, reason="finished")
    files = {path.name: path.read_bytes() for path in (run.config, run.identity, run.events)}
    for number in range(1, MANY):
        place = tmp_path / f"runs/ppo/CartPole-v1/{number}"
        place.mkdir(parents=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
    code = (
        "import sys; from flows.cli.main import main; code = main(['runs']); sys.stdout.flush();"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(ROOT), capture_output=True, text=True, check=True
    )
    assert len(ended.stdout.splitlines()) == 1 + MANY
    assert ended.stderr == "[]\n"

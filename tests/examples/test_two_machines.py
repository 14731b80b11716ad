"""The example of two machines, simulated by two folders that share only servers, git and the storage of runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from dotenv import dotenv_values

from flows.config.compose import compose
from flows.runs.create import create_run
from flows.stages.make_env import make_env
from flows.tracking.mlflow_run import RUN_TAG
from flows.workers import postgres, up
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.processes import (
    ROOT,
    changed,
    count,
    digest_of,
    environment,
    finish_here,
    free_port,
    kill_all,
    one,
    send,
    wait_for,
)
from tests.retries import run_command
from tests.soaking import soak

installed = bool(list(postgres.DEBIAN.glob("*/bin/initdb")))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed, reason=f"PostgreSQL is not installed: {postgres.INSTALL}"),
]
TRIAL = [
    "exp=ppo",
    "env.num_envs=2",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=32",
    "algo.update_epochs=1",
    "algo.total_steps=12288",
    "checkpoint.every=1024",
    "evaluation.every=3072",
    "evaluation.episodes=2",
    "evaluation.num_envs=2",
    "algo.gamma=interval(0.9,0.99)",
    "sweep.sampler=random",
    "sweep.pruner=none",
    "sweep.mode=async",
    "sweep.confirm_seeds=0",
]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> Path:
    """A repository with the current code as its only commit."""
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "deployed"]):
        git(folder, *words)
    return folder


class Machines:
    """The first machine, which has the servers, and the second, which has a worker."""

    def __init__(self, folder: Path) -> None:
        self.one, self.two, self.runs = folder / "one", folder / "two", folder / "shared/runs"
        code = repository(folder / "code")
        self.commit = git(code, "rev-parse", "HEAD")
        git(folder, "clone", "--quiet", str(code), "one")
        git(folder, "clone", "--quiet", str(code), "two/checkout")
        # No flow run may take its code from the checkout in which its worker was started.
        (self.two / "checkout/flows/train.py").write_text("raise RuntimeError('this is not what was deployed')\n")
        self.runs.mkdir(parents=True)
        ports = {key: str(free_port()) for key, _ in up.PORTS.values()}
        self.variables = {"SHEPHERD_REPOSITORY": f"file://{code}", "SHEPHERD_RUN_ROOT": str(self.runs)} | ports
        self.variables |= {"SHEPHERD_LOCAL_LIMIT": "1"}  # two cores
        self.worker: subprocess.Popen[bytes]

    def servers(self, *command: str) -> str:
        variables = environment(self.one, **self.variables) | {"PYTHONPATH": str(self.one)}
        words = [sys.executable, "-m", "flows.workers.up", *command]
        done = subprocess.run(words, cwd=self.one, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def join(self) -> None:
        """Start the worker of the second machine as described in the example."""
        shutil.copy(self.one / ".env", self.two)
        with open(self.two / ".env", "a") as dotenv:
            dotenv.writelines(f"{key}={self.variables[key]}\n" for key in ("SHEPHERD_RUN_ROOT", "SHEPHERD_REPOSITORY"))
        variables = environment(self.two) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        script = self.two / "checkout/examples/two_machines/worker.sh"
        with open(self.two / "worker.log", "ab") as log:
            self.worker = subprocess.Popen([script, "1"], cwd=self.two, env=variables, stdout=log, stderr=log)

    def prefect(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("prefect")), *words]
        loaded = {name: value for name, value in dotenv_values(self.one / ".env").items() if value is not None}
        variables = (
            environment(self.one, **self.variables) | loaded | {"PREFECT_HOME": str(self.one / ".shepherd/prefect")}
        )
        done = run_command(command, cwd=self.one, env=variables, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sweep(self, name: str, trials: int) -> None:
        """Submit a sweep with two trials at a time."""
        overrides = [*TRIAL, f"sweep.trials={trials}", "sweep.workers=2", f"sweep.name={name}"]
        self.prefect("deployment", "run", "sweep-ppo/default", "-p", f"overrides={json.dumps(overrides)}")

    def of(self, name: str) -> list[RunDirectory]:
        found = sorted((self.runs / "sweeps" / name).glob("trial_*/seed_*/run.json"))
        return [RunDirectory(path.parent) for path in found]

    def run_on_second_machine(self, name: str) -> RunDirectory | None:
        """A run in training on the second machine that has a checkpoint to resume from."""
        for run in self.of(name):
            driver_pid = re.match(r"pid (\d+)", run.driver.read_text()) if run.driver.exists() else None
            with contextlib.suppress(psutil.Error):
                home = driver_pid and psutil.Process(int(driver_pid[1])).environ().get("SHEPHERD_HOME")
                if home == str(self.two) and 0 < count(run, "checkpoint") < 9:
                    return run
        return None

    def report(self, name: str, seconds: float) -> list[dict[str, Any]]:
        """The trials, once the sweep has ended."""
        page = self.runs / "sweeps" / name / "report.json"
        wait_for(page.exists, "the sweep's end", seconds, every=0.2)
        return json.loads(page.read_text())["trials"]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    machines = Machines(tmp_path_factory.mktemp("machines"))
    try:
        machines.servers("up", "postgres")
        machines.join()
        yield machines
    finally:
        kill_all(machines.two)
        if hasattr(machines, "worker"):
            machines.worker.wait()
        machines.servers("down")


def assert_all_trials_completed_once(
    machines: Machines, name: str, trials: Sequence[dict[str, Any]], disturbed: RunDirectory
) -> None:
    """Every trial ended and none started twice; the disturbed trial has the digest of an undisturbed one."""
    runs = machines.of(name)
    assert [(trial["number"], trial["state"]) for trial in trials] == [(n, "complete") for n in range(len(runs))]
    assert [trial["policy_steps"] for trial in trials] == [run.read_summary()["policy_steps"] for run in runs]
    for run in runs:
        assert run.read_identity()["commit"] == machines.commit
        events = [*read_events(run.events)]
        evaluated = Counter(event["policy_steps"] for event in events if event["kind"] == "evaluation")
        # A run interrupted right after a checkpoint saves it again, with the evaluation recorded: the same digest.
        saved = {(event["policy_steps"], event["digest"]) for event in events if event["kind"] == "checkpoint"}
        assert len(evaluated) >= 4 and set(evaluated.values()) == {1}, (run.path, evaluated)
        assert len(saved) == len({steps for steps, _ in saved}) >= 12, (run.path, saved)
        assert run.read_summary()["status"] == "finished"
        assert not (run.path / ".lease").exists()
    resumed = {run.path: [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "resume"] for run in runs}
    assert resumed.pop(disturbed.path)[0] > 0
    assert not any(resumed.values()), resumed
    typed = disturbed.overrides.read_text().splitlines()
    typed = changed(typed, f"run_dir={machines.one / name}")
    undisturbed = create_run(*compose(typed), typed)
    make_env(undisturbed)
    assert digest_of(disturbed) == finish_here(undisturbed)
    shown = json.loads(machines.prefect("flow-run", "ls", "--flow-name", "train-ppo", "--output", "json"))
    assert len([one for one in shown if name in one["tags"]]) == len(trials)


def assert_stored_on_server(machines: Machines, name: str) -> None:
    """MLflow has each run once, with its files; the second machine has neither files nor a database."""
    import psycopg2

    database = dotenv_values(machines.one / ".env")["SHEPHERD_DATABASE_URL"]
    connection = psycopg2.connect(f"{database}_mlflow")
    with connection, connection.cursor() as cursor:
        cursor.execute("select value, count(*) from tags where key = %s group by value", [RUN_TAG])
        mirrored = dict(cursor.fetchall())
    connection.close()
    for run in machines.of(name):
        assert mirrored[run.read_identity()["run_id"]] == 1
    assert list(machines.one.glob(".shepherd/mlartifacts/**/*.png"))
    assert not list(machines.two.glob(".shepherd/mlartifacts/**/*")) + list(machines.two.glob(".shepherd/**/mlflow.db"))
    assert not [path for path in machines.two.iterdir() if path.name == "runs"]


@soak
def test_sweep_on_two_machines_survives_worker_kill(machines: Machines) -> None:
    machines.sweep("both", 3)
    disturbed = wait_for(lambda: machines.run_on_second_machine("both"), "a trial on the second machine", 180)
    send(one(machines.two, "worker"), signal.SIGKILL)
    assert_all_trials_completed_once(machines, "both", machines.report("both", 300), disturbed)
    assert_stored_on_server(machines, "both")


@soak
def test_sweep_of_twelve_trials_survives_machine_loss(machines: Machines) -> None:
    machines.sweep("twelve", 12)
    wait_for(lambda: len(machines.of("twelve")) > 5, "the middle", 400)
    disturbed = wait_for(lambda: machines.run_on_second_machine("twelve"), "a trial on the second machine", 180)
    kill_all(machines.two)
    machines.worker.wait()
    assert_all_trials_completed_once(machines, "twelve", machines.report("twelve", 600), disturbed)
    machines.join()

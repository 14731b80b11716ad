"""Trainers forked from a warm process, compared with fresh ones; the shared process that copies logs to MLflow."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.runs.trainer import trainer_for
from flows.runs.trainer_process import TrainerProcess
from flows.runs.warm import TRAINER, TRAINERS, start_warm, warm_trainers
from flows.settings import WARM
from flows.stages.train import train
from flows.tracking import mirror
from rlcore.errors import RunError
from rlcore.store.directory import RunDirectory
from rlcore.system.forked import UNKNOWN, Forked
from tests.flows.synthetic_runs import synthetic_run, train_a_while
from tests.processes import digest_of, environment, finish_here, wait_for
from tests.runs import prepare
from tests.soaking import always, heavy

pytestmark = [pytest.mark.slow, heavy]
LONG = {"total_steps": 10_000_000, "evaluation__every": 10_000_000, "checkpoint__every": 10_000_000}


@pytest.fixture(autouse=True)
def _warm(warm: None) -> None:
    """Use the fork server of the test session in all tests except those with their own server."""


def train_run(path: Path, **dotted: Any) -> tuple[str, Any]:
    """Train a run, and return its digest and its trainer's process."""
    run = prepare(path, **dotted)
    train(run)
    trainer = trainer_for(run)
    trainer.stop()
    return digest_of(run), trainer.process


def test_forked_trainer_matches_fresh_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algo__normalize_obs": True, "algo__normalize_reward": True, "env__sync_env": False}
    bits, process = train_run(tmp_path / "forked", **settings)
    assert isinstance(process, Forked)
    assert process.returncode == 0
    monkeypatch.delenv(WARM)
    fresh, process = train_run(tmp_path / "fresh", **settings)
    assert isinstance(process, subprocess.Popen)
    assert bits == fresh


def test_killed_forked_trainer_is_reported_and_resumed(tmp_path: Path) -> None:
    whole = prepare(tmp_path / "whole", total_steps=1024, checkpoint__every=256)
    run = prepare(tmp_path / "run", total_steps=1024, checkpoint__every=256)
    trainer = TrainerProcess(run)
    while not trainer.advance().due:
        continue
    trainer.checkpoint()
    trainer.process.kill()
    assert trainer.process.wait(10) == -signal.SIGKILL
    with pytest.raises(RunError, match="was killed by signal 9"):
        trainer.advance()
    train(run)
    trainer_for(run).stop()
    assert digest_of(run) == finish_here(whole)


def test_forked_trainer_with_two_ranks_matches_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"fabric__devices": 2, "total_steps": 512}
    bits, process = train_run(tmp_path / "forked", **settings)
    assert isinstance(process, Forked)
    monkeypatch.delenv(WARM)
    assert bits == train_run(tmp_path / "fresh", **settings)[0]


def test_forked_trainer_inherits_surroundings_of_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The trainer imports this plugin at its start, and the plugin logs its surroundings.
    (tmp_path / "tells.py").write_text(
        "import json, os, sys\n"
        "said = [os.getcwd(), os.environ.get('GIVEN'), os.environ.get('TAKEN'), os.getsid(0) == os.getpid()]\n"
        "print(json.dumps(said + [os.environ.get('SHEPHERD_PLUGINS')]), file=sys.stderr)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIVEN", "here")
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tells")
    run = prepare(tmp_path / "run")
    trainer = TrainerProcess(run)
    assert isinstance(trainer.process, Forked)
    trainer.stop()
    output = next(line for line in run.log.read_text().splitlines() if line.startswith("["))
    assert json.loads(output) == [str(tmp_path), "here", None, True, "tells"]


def test_start_warm_forks_only_in_equal_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)

    def started_type() -> type:
        with open(tmp_path / "log", "wb") as log:
            process = start_warm(TRAINER, str(run.path), log=log)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return type(process)

    with monkeypatch.context() as patch:
        patch.setenv("KMP_INIT_AT_FORK", "FALSE")  # set by scikit-learn, which reports of sweeps import
        patch.setenv("LD_LIBRARY_PATH", "/site-packages/cv2/../../lib64:" + os.environ.get("LD_LIBRARY_PATH", ""))
        assert started_type() is Forked
    with monkeypatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", "/elsewhere")
        assert started_type() is subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        assert started_type() is subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr("flows.runs.warm.code_version", lambda: {"core_hash": "another"})
        assert started_type() is subprocess.Popen
    monkeypatch.setenv(WARM, str(tmp_path / "nothing there"))
    assert started_type() is subprocess.Popen


@always
def test_forked_trainer_ends_with_client(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", algo__compile=False, **LONG)
    script = (
        "import sys; from flows.runs.trainer_process import TrainerProcess\n"
        "from rlcore.store.directory import RunDirectory\n"
        "t = TrainerProcess(RunDirectory(sys.argv[1])); print(type(t.process).__name__, t.process.pid, flush=True)\n"
        "t.advance()"
    )
    variables = environment(tmp_path) | {WARM: os.environ[WARM]}
    driver = subprocess.Popen([sys.executable, "-c", script, str(run.path)], stdout=subprocess.PIPE, env=variables)
    assert driver.stdout is not None
    kind, pid = driver.stdout.readline().split()
    assert kind == b"Forked"
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_for(lambda: not psutil.pid_exists(int(pid)), "the trainer's end", 5.0)


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """Yield a fork server for this test only."""
    monkeypatch.delenv(WARM)
    before = {child.pid for child in psutil.Process().children()}

    def find() -> psutil.Process | None:
        children = [child for child in psutil.Process().children() if child.pid not in before]
        return next((child for child in children if "rlcore.system.fork_server" in child.cmdline()), None)

    with warm_trainers():
        yield wait_for(find, "the server")  # on a busy machine the command line appears late


def test_forked_trainers_survive_killed_fork_server(own_server: psutil.Process, tmp_path: Path) -> None:
    run, killed = prepare(tmp_path / "run"), prepare(tmp_path / "killed", algo__compile=False, **LONG)
    trainer, second = TrainerProcess(run), TrainerProcess(killed)
    assert (
        own_server.num_threads() == 1
    )  # another thread could hold a lock during the fork, which stays locked in the child
    assert isinstance(trainer.process, Forked)
    own_server.kill()
    own_server.wait()
    assert trainer.process.poll() is None
    while not trainer.advance().done:
        continue
    trainer.stop()
    assert trainer.process.returncode == UNKNOWN
    second.process.kill()
    with pytest.raises(RunError, match="ended with code 255"):
        second.advance()
    fresh = TrainerProcess(prepare(tmp_path / "next"))
    assert isinstance(fresh.process, subprocess.Popen)
    fresh.stop()


def test_warm_trainers_uses_private_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WARM)
    before = {child.pid for child in psutil.Process().children()}
    with warm_trainers():
        folder = Path(os.environ[WARM])
        assert folder.parent == Path(tempfile.gettempdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert (folder / TRAINERS).is_socket()
        with warm_trainers():  # nested, as in a child process
            assert os.environ[WARM] == str(folder)
    assert WARM not in os.environ
    assert not folder.exists()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_shared_mirror_uploads_all_runs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WARM)
    runs = [synthetic_run(tmp_path / name, name) for name in ("one", "two", "three")]

    def mirrors() -> list[int]:
        found = [c.pid for c in psutil.Process().children() if "flows.tracking" in c.cmdline()]
        return [pid for pid in found if pid not in before]

    before: list[int] = []
    before = mirrors()  # those of the test session
    with warm_trainers():
        for run in runs:
            train_a_while(run, 0, 300)
            mirror.mirror_in_background(run)
        (pid,) = wait_for(mirrors, "a mirror")  # wait for its command line
        for run in runs[:2]:
            assert mirror.finish_mirror(run)
            assert (run.path / UPLOADS).exists()
        mirror.mirror_in_background(runs[2], every=0)  # only the driver waits for it, at its end
        assert mirrors() == [pid]
        # Runs of another store need another mirror.
        with monkeypatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
            other = mirror.Mirror(runs[0])
        assert other.process is not None
        other.end()
    assert mirrors() == []
    assert (runs[2].path / UPLOADS).exists()


UPLOADS = ".mlflow/uploads.json"


def test_finish_mirror_survives_killed_shared_mirror(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WARM)
    run = synthetic_run(tmp_path / "run", "left alone")
    before = {child.pid for child in psutil.Process().children()}
    with warm_trainers():
        assert mirror.finish_mirror(run)
        children = [child for child in psutil.Process().children() if child.pid not in before]
        (shared,) = (child for child in children if "flows.tracking" in child.cmdline())
        shared.kill()
        shared.wait()
        train_a_while(run, 0, 300)
        assert mirror.finish_mirror(run)
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        ours = "run_uuid in (select run_uuid from tags where value = 'left alone')"
        query = f"select step from metrics where key = 'Rewards/rew_avg' and {ours} order by step"
        assert store.execute(query).fetchall() == [(0,), (100,), (200,)]

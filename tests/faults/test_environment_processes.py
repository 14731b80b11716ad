"""Environments that die, hang or return invalid data in a trainer: error message, valid checkpoint, same digest."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.runs import trainer_process as driver
from flows.runs.listeners import subscribe
from flows.runs.trainer import release
from flows.stages.train import train
from rlcore.config.groups import EnvConfig
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.subprocess import SubprocessVectorEnv
from rlcore.errors import EnvironmentFault, EnvironmentLost
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from tests.processes import NO_STORE, ROOT, end, finish_here, orphans, processes, start
from tests.runs import prepare
from tests.soaking import always, heavy

RUN = {"total_steps": 700, "checkpoint__every": 130, "evaluation__every": 5000, "algo__update_epochs": 1}
pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("plugins")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A function that returns the digest of a run without faults, which is trained on the first call."""
    digests: list[str] = []

    def get() -> str:
        if not digests:
            run = prepare(tmp_path_factory.mktemp("undisturbed") / "run", "Faulty-v0", **RUN)
            digests.append(finish_here(run))
        return digests[0]

    yield get


def assert_resumes_to(run: RunDirectory, expected: str) -> None:
    newest = next(checkpoint.newest_first(run.checkpoints))
    assert checkpoint.damage(newest) is None
    assert 0 < int(newest.name) < RUN["total_steps"]
    assert finish_here(run) == expected


def test_killed_environment_process_resumes_to_same_digest(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    run, killed = prepare(tmp_path / "run", "Faulty-v0", env__sync_env=False, **RUN), []

    def kill_one(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress" and facts["policy_steps"] > 300 and not killed:
            killed.append(max(p.pid for p in processes(tmp_path) if p.kind == "worker"))
            os.kill(killed[0], signal.SIGKILL)

    message = r"^environment 1, step \d+ of its episode: its process died \(exit code -9, SIGKILL\)$"
    with pytest.raises(EnvironmentLost, match=message), subscribe(kill_one):
        train(run)
    release(run)
    mine = [p for p in orphans(tmp_path) if p.kind in ("trainer", "worker")]
    assert not mine
    # Separate processes for environments do not change the digest.
    assert_resumes_to(run, undisturbed())


def test_step_timeout_ends_environment_holding_gil(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", 8.0)  # the trainer sends a heartbeat every 2 s
    run = prepare(tmp_path / "run", "Faulty-v0", env__step_timeout=1.0, **RUN)
    monkeypatch.setenv("FAULT", "freeze:step:400")
    with pytest.raises(EnvironmentLost, match=r"Faulty-v0.* hung; .* sent no message for 8 s \(env.step_timeout"):
        train(run)
    monkeypatch.setenv("FAULT", "")
    assert_resumes_to(run, undisturbed())


@always
def test_train_command_reports_faulty_step(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run", "Faulty-v0", **RUN)
    kept = {"PYTHONPATH": str(ROOT), "SHEPHERD_PLUGINS": os.environ["SHEPHERD_PLUGINS"]}
    code, output = end(start(tmp_path, "stage", "train", "run", FAULT="reward_nan:step:400", **kept, **NO_STORE))
    assert code == 1, output
    assert output.endswith(
        "shepherd: failed: environment 1, step 20 of its episode: reward is nan, but must be a finite float32 number\n"
    ), output
    assert not orphans(tmp_path)
    assert_resumes_to(run, undisturbed())


# Pauses


def pause_for(pid: int, seconds: float) -> None:
    """Pause a process now and continue it after some seconds, from another thread."""
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


def test_step_timeout_tolerates_paused_worker() -> None:
    envs = make_vector_env(EnvConfig(id="Faulty-v0", sync_env=False, step_timeout=1.5), num_envs=2, seed=0)
    assert isinstance(envs, SubprocessVectorEnv)
    same_process = make_vector_env(EnvConfig(id="Faulty-v0"), num_envs=2, seed=0)
    try:
        assert (envs.reset().obs["state"] == same_process.reset().obs["state"]).all()
        pause_for(envs.pids[1], 2.5)
        start_time = time.monotonic()
        for _ in range(3):
            stepped, reference = (each.step(np.zeros(2, int)) for each in (envs, same_process))
            assert (stepped.obs["state"] == reference.obs["state"]).all()
        assert time.monotonic() - start_time > 2.0
    finally:
        envs.close()


@pytest.mark.parametrize("fault", ["freeze:step:5", "sleep:reset:2"])
def test_step_timeout_ends_hung_worker(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("FAULT", fault)
    envs = make_vector_env(EnvConfig(id="Faulty-v0", sync_env=False, step_timeout=0.5), num_envs=1, seed=0)
    try:
        envs.reset()
        with pytest.raises(EnvironmentFault, match=r"hung; no answer within 0.5 s \(env.step_timeout\)"):
            for _ in range(30):
                envs.step(np.zeros(1, int))
    finally:
        envs.close()

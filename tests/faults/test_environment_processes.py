"""Environments that die, hang or lie under a real trainer: a sentence, a good checkpoint, the same bits afterwards."""

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

from flows.runs import trainer as driver
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
    """The digest of a run that met no fault, made when first asked for."""
    made: list[str] = []

    def get() -> str:
        if not made:
            run = prepare(tmp_path_factory.mktemp("undisturbed") / "run", "Faulty-v0", **RUN)
            made.append(finish_here(run))
        return made[0]

    yield get


def is_good_and_goes_on_to(run: RunDirectory, wanted: str) -> None:
    newest = next(checkpoint.newest_first(run.checkpoints))
    assert checkpoint.damage(newest) is None
    assert 0 < int(newest.name) < RUN["total_steps"]
    assert finish_here(run) == wanted


@always
def test_a_killed_environment_process_is_named_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    run, killed = prepare(tmp_path / "run", "Faulty-v0", env__sync_env=False, **RUN), []

    def kill_one(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress" and facts["policy_steps"] > 300 and not killed:
            killed.append(max(p.pid for p in processes(tmp_path) if p.kind == "worker"))
            os.kill(killed[0], signal.SIGKILL)

    says = r"^environment 1, step \d+ of its episode: its process died \(exit code -9, SIGKILL\)$"
    with pytest.raises(EnvironmentLost, match=says), subscribe(kill_one):
        train(run)
    release(run)
    mine = [p for p in orphans(tmp_path) if p.kind in ("trainer", "worker")]
    assert not mine
    # Whether environments have processes of their own is no part of what is learned.
    is_good_and_goes_on_to(run, undisturbed())


def test_an_engine_that_holds_the_interpreter_lock_is_ended_by_the_time_limit(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", 8.0)  # the trainer says that it lives every 2 s
    run = prepare(tmp_path / "run", "Faulty-v0", env__step_timeout=1.0, **RUN)
    monkeypatch.setenv("FAULT", "freeze:step:400")
    with pytest.raises(EnvironmentLost, match=r"Faulty-v0.* hung; .* sent no message for 8 s \(env.step_timeout"):
        train(run)
    monkeypatch.setenv("FAULT", "")
    is_good_and_goes_on_to(run, undisturbed())


@always
def test_a_faulty_step_ends_the_command_with_a_sentence(
    tmp_path: Path, undisturbed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run", "Faulty-v0", **RUN)
    kept = {"PYTHONPATH": str(ROOT), "SHEPHERD_PLUGINS": os.environ["SHEPHERD_PLUGINS"]}
    code, said = end(start(tmp_path, "stage", "train", "run", FAULT="reward_nan:step:400", **kept, **NO_STORE))
    assert code == 1, said
    assert said.endswith(
        "shepherd: failed: environment 1, step 20 of its episode: reward is nan, but must be a finite float32 number\n"
    ), said
    assert not orphans(tmp_path)
    is_good_and_goes_on_to(run, undisturbed())


# Pauses


def paused(pid: int, seconds: float) -> None:
    """Pause a process now, and let it go on from another thread."""
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


def test_a_worker_that_somebody_paused_is_not_hung() -> None:
    envs = make_vector_env(EnvConfig(id="Faulty-v0", sync_env=False, step_timeout=1.5), num_envs=2, seed=0)
    assert isinstance(envs, SubprocessVectorEnv)
    alone = make_vector_env(EnvConfig(id="Faulty-v0"), num_envs=2, seed=0)
    try:
        assert (envs.reset().obs["state"] == alone.reset().obs["state"]).all()
        paused(envs.pids[1], 2.5)
        began = time.monotonic()
        for _ in range(3):
            ours, theirs = (each.step(np.zeros(2, int)) for each in (envs, alone))
            assert (ours.obs["state"] == theirs.obs["state"]).all()
        assert time.monotonic() - began > 2.0
    finally:
        envs.close()


@pytest.mark.parametrize("fault", ["freeze:step:5", "sleep:reset:2"])
def test_a_worker_that_hangs_is_ended_by_the_time_limit(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("FAULT", fault)
    envs = make_vector_env(EnvConfig(id="Faulty-v0", sync_env=False, step_timeout=0.5), num_envs=1, seed=0)
    try:
        envs.reset()
        with pytest.raises(EnvironmentFault, match=r"hung; no answer within 0.5 s \(env.step_timeout\)"):
            for _ in range(30):
                envs.step(np.zeros(1, int))
    finally:
        envs.close()

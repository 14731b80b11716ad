"""A training with two ranks: what each saves, how it ends when one is killed, and the digest after resuming."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.processes import NO_STORE, count, digest_of, end, kill_all, one, orphans, processes, start, wait_for
from tests.runs import prepare
from tests.soaking import always, heavy, soak

pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for uninterrupted trainings
RUN: dict[str, Any] = {"fabric__devices": 2, "total_steps": 4096, "checkpoint__every": 512, "evaluation__every": 2048}
RUN |= {"algo__normalize_reward": True}  # the running returns belong to each rank's environments


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


def trained(home: Path, name: str) -> RunDirectory:
    """Train a run to its end without interruption, with a forked trainer."""
    code, output = end(start(home, "stage", "train", name, **NO_STORE, SHEPHERD_WARM=os.environ["SHEPHERD_WARM"]))
    assert code == 0, output
    return RunDirectory(home / name)


@pytest.mark.parametrize("algo", [pytest.param("ppo", marks=soak), "a2c"])
def test_killed_rank_resumes_to_same_digest(algo: str, home: Path) -> None:
    prepare(home / "whole", algo=algo, **RUN)
    whole = trained(home, "whole")
    run = prepare(home / "cut", algo=algo, **RUN)
    process = start(home, "stage", "train", "cut", **NO_STORE)
    wait_for(lambda: count(run, "checkpoint"), "a checkpoint")
    os.kill(one(home, "worker_rank"), signal.SIGKILL)
    code, output = end(process)
    assert (code, "rank 1 of the training was killed by signal 9" in output, "Traceback" in output) == (
        1,
        True,
        False,
    ), output
    assert not orphans(home)
    assert 0 < int(checkpoint.resolve(run, "latest").name) < 4000
    # A signal to the command ends both ranks cleanly, with a checkpoint.
    before = count(run, "checkpoint")
    process = start(home, "stage", "train", "cut", **NO_STORE)
    wait_for(lambda: count(run, "checkpoint") > before, "another checkpoint")
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 130
    assert not orphans(home)
    assert digest_of(trained(home, "cut")) == digest_of(whole)
    learning, _ = checkpoint.load(checkpoint.resolve(whole, "latest"))
    assert list(learning["ranks"]) == ["0", "1"]
    assert learning["ranks"]["0"]["learner"] == []
    ((place, running),) = learning["ranks"]["1"]["learner"]
    assert place == ["reward_scaler", "running"]
    assert not torch.equal(running, learning["learner"]["reward_scaler"]["running"])
    first, second = (learning["ranks"][rank]["collector"] for rank in ("0", "1"))
    assert first["rng"] != second["rng"] and first["policy_steps"] == second["policy_steps"] == 4096
    # Only one rank writes, so every point exists once; it covers the episodes of both ranks.
    points = [e["policy_steps"] for e in read_events(whole.events) if e["kind"] == "metrics"]
    assert points == sorted(set(points)) and points[-1] == first["policy_steps"] > 3500


@always
def test_fault_in_second_rank_is_reported(home: Path) -> None:
    importlib.import_module("tests.faults.faulty_envs")
    run = prepare(home / "run", "Faulty-v0", **RUN | {"env__num_envs": 1})
    plugin = {"SHEPHERD_PLUGINS": "tests.faults.faulty_envs", "FAULT": "reward_nan:step:300:1"}
    code, output = end(start(home, "stage", "train", "run", **NO_STORE, **plugin))
    assert code == 1 and "rank 1: " in output and "reward" in output and "Traceback" not in output, output
    assert not orphans(home) and run.events.exists()


def join_output(address: Any) -> list[str]:
    """Output of a program that connects to the address as a client of torch's TCPStore; it may wait in vain."""
    code = f"print('trying', flush=True); distributed.TCPStore('{address.ip}', {address.port}, wait_for_workers=False)"
    words = [sys.executable, "-c", f"from torch import distributed\n{code}\nprint('joined')"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        output = [child.stdout.readline().strip()]
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        child.kill()
        return output + child.stdout.read().split()


def test_rank_sockets_refuse_other_programs(home: Path) -> None:
    settings: dict[str, Any] = RUN | {"total_steps": 1 << 20}
    run = prepare(home / "run", **settings)
    process = start(home, "stage", "train", "run", **NO_STORE)
    wait_for(lambda: count(run, "checkpoint"), "a checkpoint")
    own = [psutil.Process(each.pid) for each in processes(home)]
    open_ = {c.laddr for each in own for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert len(open_) >= 2 and {address.ip for address in open_} == {"127.0.0.1"}  # sockets of gloo
    for address in open_:
        assert join_output(address) == ["trying"], address
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 130
    assert not orphans(home)

"""Killed and resumed: one environment of each tier at random moments, and all of `shepherd train`, compiled.

Algorithms and suites are in separate files because `make test` distributes whole files to its workers.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from flows.config.compose import compose
from flows.runs.create import create_run
from flows.stages.make_env import make_env
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from tests.kills.cases import TIERS, Case
from tests.kills.killing import finish, same_bits
from tests.kills.phases import PLACES
from tests.kills.sampled import check
from tests.processes import LOOK, ROOT, count, finish_here, kill_all, orphans, processes, start, wait_for
from tests.soaking import heavy, soak
from tests.stores import furnish, standing_api

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which is not killed


@pytest.mark.parametrize(
    ("tier", "modes"),
    [
        pytest.param("snapshot", ("in-process", "subprocess"), marks=heavy),
        pytest.param("replay", ("in-process", "subprocess"), marks=heavy),
        # Its environments share state in the process, so it would be another environment in subprocesses.
        pytest.param("boundary", ("in-process",), marks=heavy),
    ],
    ids=["snapshot", "replay", "boundary"],
)
def test_killed_run_resumes_to_same_bits(tier: str, modes: tuple[str, ...], tmp_path: Path) -> None:
    assert f'"tier": "{tier}"' in check(TIERS[tier], modes, tmp_path).card.read_text()


# tests/rlcore/envs/batched/test_endless.py resumes such runs in one process.
@heavy
@pytest.mark.parametrize("env_id", ["batched/rl8-discrete_dummy", pytest.param("batched/rl8-mountain_car", marks=soak)])
def test_killed_endless_run_resumes_to_same_bits(env_id: str, tmp_path: Path) -> None:
    check(env_id, ("in-process",), tmp_path)


@pytest.mark.parametrize("algo", [pytest.param("ppo", marks=soak), "ppo_recurrent"])
@heavy
def test_killed_run_with_masks_and_windows_resumes_to_same_bits(algo: str, tmp_path: Path) -> None:
    check("Trading", ("in-process",), tmp_path, algo)


@soak  # tests/rlcore/envs/vector/test_native.py checks its state, through a file and into single environments
def test_killed_vectorized_run_resumes_to_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("native",), tmp_path)


def test_killed_train_leaves_no_process_and_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is compiled, so that this test covers compiled runs too."""
    furnish(tmp_path)
    case, run = Case("CartPole-v1", "compiled flow"), RunDirectory(tmp_path / "killed")
    try:
        process = start(tmp_path, *case.command(run)[3:], **case.variables)
        parts = {"cli", "local_api", "trainer"}  # and a mirror after half a minute
        wait_for(lambda: parts <= {p.kind for p in processes(tmp_path)}, f"all of {parts}", every=LOOK)
        wait_for(lambda: count(run, "checkpoint"), "a checkpoint")
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.0)
        assert {"cli", "local_api", "trainer"} <= {p.kind for p in processes(tmp_path)}  # paused is not dead
        process.kill()
        assert not orphans(tmp_path, 2.0)
        process.communicate()
        assert checkpoint.newest_good(run.checkpoints) is not None
    finally:
        kill_all(tmp_path)
    finish(run, case, tmp_path, **standing_api())
    undisturbed = case.overrides(tmp_path / "undisturbed")
    whole = create_run(*compose(undisturbed), undisturbed)
    make_env(whole)
    monkeypatch.setenv("SHEPHERD_CACHE", case.variables["SHEPHERD_CACHE"])
    finish_here(whole)
    assert same_bits(whole, run)
    learning = checkpoint.load(checkpoint.resolve(run, "latest"))[1]["fingerprint"]["learning"]
    assert learning["compile"] == "ahead-of-time"
    check_one_model_and_unique_points(tmp_path, runs=1)


@soak
def test_repeatedly_killed_train_ends_with_one_model(tmp_path: Path) -> None:
    check("CartPole-v1", ("flow",), tmp_path)
    finished = len(list(tmp_path.glob("*/summary.json")))
    assert finished >= 2
    check_one_model_and_unique_points(tmp_path, runs=finished)


def check_one_model_and_unique_points(home: Path, runs: int) -> None:
    """Check that equal runs register one model version, and that each metric point is stored once."""
    summaries = [RunDirectory(path.parent).read_summary() for path in home.glob("*/summary.json")]
    assert [(summary["status"], summary["model"]["version"]) for summary in summaries] == [("finished", 1)] * runs
    with sqlite3.connect(home / ".shepherd/mlflow.db") as store:
        assert store.execute("select count(*) from runs").fetchone() == (runs,)
        assert store.execute("select count(*) from model_versions").fetchone() == (1,)
        points = store.execute("select run_uuid, key, step from metrics").fetchall()
    store.close()
    assert len(points) > 250 * runs
    assert max(Counter(points).values()) == 1


def test_phase_places_exist_in_sources() -> None:
    for path, function, _ in PLACES:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(), (path, function)

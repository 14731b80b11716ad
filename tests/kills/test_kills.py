"""Killed and resumed: one environment of each tier at drawn moments; the whole of `shepherd train`, compiled.

Algorithms and suites have files of their own beside this one: `make test` gives a file to one of its workers.
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

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which nobody kills


@pytest.mark.parametrize(
    ("tier", "modes"),
    [
        ("snapshot", ("in-process", "subprocess")),
        pytest.param("replay", ("in-process", "subprocess"), marks=heavy),
        # Its environments share a place, so in subprocesses it is another environment.
        pytest.param("boundary", ("in-process",), marks=heavy),
    ],
    ids=["snapshot", "replay", "boundary"],
)
def test_killed_anywhere_a_run_ends_in_the_bits_of_the_one_nobody_killed(
    tier: str, modes: tuple[str, ...], tmp_path: Path
) -> None:
    assert f'"tier": "{tier}"' in check(TIERS[tier], modes, tmp_path).card.read_text()


@soak  # its state, through a file and into single environments, is that of tests/rlcore/envs/vector/test_native.py
def test_killed_anywhere_a_vectorised_environment_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("native",), tmp_path)


def test_a_killed_shepherd_train_leaves_nothing_alive_and_ends_in_the_same_bits_and_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a compiled step, so that this is the sample of both."""
    furnish(tmp_path)
    case, run = Case("CartPole-v1", "compiled flow"), RunDirectory(tmp_path / "killed")
    try:
        process = start(tmp_path, *case.command(run)[3:], **case.variables)
        parts = {"cli", "local_api", "trainer"}  # and a mirror, where half a minute has passed
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
    learned_by = checkpoint.load(checkpoint.resolve(run, "latest"))[1]["fingerprint"]["learning"]
    assert learned_by["compile"] == "ahead-of-time"
    every_model_and_point_once(tmp_path, runs=1)


@soak
def test_killed_anywhere_shepherd_train_ends_in_the_same_bits_and_one_model(tmp_path: Path) -> None:
    check("CartPole-v1", ("flow",), tmp_path)
    finished = len(list(tmp_path.glob("*/summary.json")))
    assert finished >= 2
    every_model_and_point_once(tmp_path, runs=finished)


def every_model_and_point_once(home: Path, runs: int) -> None:
    """All learned the same, so the others are not registered as other models."""
    summaries = [RunDirectory(path.parent).read_summary() for path in home.glob("*/summary.json")]
    assert [(summary["status"], summary["model"]["version"]) for summary in summaries] == [("finished", 1)] * runs
    with sqlite3.connect(home / ".shepherd/mlflow.db") as store:
        assert store.execute("select count(*) from runs").fetchone() == (runs,)
        assert store.execute("select count(*) from model_versions").fetchone() == (1,)
        points = store.execute("select run_uuid, key, step from metrics").fetchall()
    store.close()
    assert len(points) > 250 * runs
    assert max(Counter(points).values()) == 1


def test_the_places_that_tell_a_phase_are_there() -> None:
    for path, function, _ in PLACES:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(), (path, function)

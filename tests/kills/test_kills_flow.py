"""Killed at drawn moments and resumed: the whole of `shepherd train`, and a compiled minibatch step."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from rlcore.store.directory import RunDirectory
from tests.kills.sampled import check
from tests.soaking import soak

pytestmark = pytest.mark.slow


@soak
def test_killed_anywhere_shepherd_train_ends_in_the_same_bits_and_one_model(tmp_path: Path) -> None:
    check("CartPole-v1", ("flow",), tmp_path)
    finished = [RunDirectory(path.parent).read_summary() for path in tmp_path.glob("*/summary.json")]
    assert len(finished) >= 2
    assert {(summary["status"], summary["model"]["version"]) for summary in finished} == {("finished", 1)}
    with sqlite3.connect(tmp_path / ".shepherd/mlflow.db") as store:
        runs = store.execute("select count(*) from runs").fetchone()[0]
        points = store.execute("select run_uuid, key, step from metrics").fetchall()
        versions = store.execute("select count(*) from model_versions").fetchone()[0]
    store.close()
    # All learned the same, so the others are not registered as other models.
    assert (runs, versions) == (len(finished), 1)
    assert len(points) > 500
    assert max(Counter(points).values()) == 1


def test_killed_anywhere_a_compiled_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    check("CartPole-v1", ("compiled",), tmp_path)

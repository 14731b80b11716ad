"""Two ranks: numbers of `info` are means over both, and an extended run equals a run with a larger budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore.store import checkpoint, compare
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.probes import envs  # noqa: F401 - registers known/...
from tests.processes import NO_STORE, end, kill_all, orphans, start
from tests.runs import prepare
from tests.soaking import heavy

pytestmark = [pytest.mark.slow, heavy, pytest.mark.usefixtures("warm")]
PLUGIN = "tests.probes.envs"
# Iterations of 2 ranks with 64 rows each.
KEYS: dict[str, Any] = {"fabric__devices": 2, "checkpoint__every": 256, "evaluation__every": 256}
KEYS |= {"env__info_keys": ["rank"], "metric__log_every": 128}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


def train(home: Path, name: str, total_steps: int, **more: Any) -> RunDirectory:
    run = prepare(home / name, "known/Rank-v0", total_steps, **KEYS | more)
    code, output = end(start(home, "stage", "train", name, **NO_STORE, SHEPHERD_PLUGINS=PLUGIN))
    assert code == 0, output
    assert not orphans(home)
    return run


def means(run: RunDirectory) -> list[tuple[int, float]]:
    return [
        (event["policy_steps"], event["values"]["Game/rank"])
        for event in read_events(run.events)
        if event["kind"] == "metrics"
    ]


def test_extended_run_equals_longer_run_with_numbers_of_both_ranks(home: Path) -> None:
    whole = train(home, "whole", 512)
    source = train(home, "source", 256)
    longer = train(home, "longer", 512, checkpoint__extend_from=str(source.checkpoints / "256"))
    last = [checkpoint.resolve(run, "latest") for run in (whole, longer)]
    assert [path.name for path in last] == ["512", "512"]
    assert not list(compare.differences(*last))
    # All episodes have five steps, so both ranks finish equally many: the mean of the ranks 0 and 1.
    assert means(whole) == [(steps, 0.5) for steps in (128, 256, 384, 512)]
    assert means(longer) == [(steps, 0.5) for steps in (384, 512)]
    evaluated = [e["greedy"]["info"]["rank"]["mean"] for e in read_events(longer.events) if e["kind"] == "evaluation"]
    assert evaluated == [0.0, 0.0]  # rank 0 evaluates; the source's last policy is evaluated again

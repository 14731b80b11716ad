"""Shared incremental reading of the event log."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from rlcore.store import events
from rlcore.store.events import EventLog, ending, read_events
from rlcore.store.history import KEPT, history
from rlcore.store.series import lines
from tests.flows.synthetic_runs import long_log, synthetic_run

BASELINE = {"mean": 21.5, "std": 1.0, "ci95": [20.0, 23.0], "episodes": 10}


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="r", algo="ppo", env_id="CartPole-v1", seed=1)
    log.append("baseline", **BASELINE)
    for step in range(100, 600, 100):
        log.append("metrics", policy_steps=step, values={"Rewards/rew_avg": step / 2, "Loss/value_loss": 2.0}, wall_s=1)
        log.append("evaluation", policy_steps=step, final=False, greedy={"mean": step * 1.0}, wall_s=2)
    return log


def test_history_parses_each_line_once(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    event = events.parse_event
    monkeypatch.setattr(events, "parse_event", lambda line: parsed.append(line) or event(line))
    for step in (600, 700, 800):
        assert history(log.path).last("baseline") is not None
        log.append("metrics", policy_steps=step, values={"Rewards/rew_avg": 1.0})
    assert history(log.path).policy_steps == 800
    assert len(parsed) == len(log.path.read_bytes().splitlines()) == 15


def test_history_equals_whole_log(log: EventLog) -> None:
    for piece in ("finished", "interrupted"):
        history(log.path)
        log.append("end", status=piece, policy_steps=500, reason=None)
        log.append("resume", policy_steps=400)
        log.append("metrics", policy_steps=500, values={"Rewards/rew_avg": 7.0}, wall_s=3)  # repeated: not a new point
        log.append("metrics", policy_steps=450, values={"Rewards/rew_avg": 8.0}, wall_s=3)
    whole, read = list(read_events(log.path)), history(log.path)
    assert read.ended == ending(whole)
    assert read.lines == {name: line for name, line in lines(whole).items() if name in KEPT}
    assert read.events == [event for event in whole if event["kind"] != "metrics"]
    assert read.lines["Rewards/rew_avg"][-2:] == [(450, 8.0), (500, 250.0)]


def test_history_restarts_for_replaced_log(log: EventLog) -> None:
    assert history(log.path).last("baseline") is not None
    log.path.unlink()
    assert history(log.path).last("start") is None
    log.append("start", run_id="another", algo="sac", env_id="CartPole-v1", seed=2)
    assert history(log.path).last("start", run_id="another") is not None
    log.path.write_text(log.path.read_text().replace("another", "a third") + log.path.read_text())
    assert [event["run_id"] for event in history(log.path).of("start")] == ["a third", "another"]


def test_history_uses_little_memory_for_long_log(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "long")
    long_log(run, 3000)
    tracemalloc.start()
    try:
        assert len(history(run.events).lines["Rewards/rew_avg"]) == 3000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # the list of its events takes 7 MB

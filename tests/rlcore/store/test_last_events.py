from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlcore.store.events import EventLog
from rlcore.store.history import history
from rlcore.store.last_events import LastEvents, Measured

RESULT = {"mean": 5.0, "std": 1.0, "ci95": [4.0, 6.0], "episodes": 2}


def metrics(log: EventLog, steps: int, **values: float) -> None:
    log.append("metrics", policy_steps=steps, values=values)


def end(log: EventLog, status: str, steps: int) -> None:
    log.append("end", status=status, policy_steps=steps, reason=status)


def interrupted_and_resumed(log: EventLog) -> None:
    metrics(log, 100)
    end(log, "interrupted", 100)
    log.append("resume", policy_steps=100)
    metrics(log, 200)


def evaluated_again(log: EventLog) -> None:
    end(log, "finished", 300)
    log.append("resume", policy_steps=300)


def extended(log: EventLog) -> None:
    end(log, "finished", 300)
    log.append("resume", policy_steps=300)
    metrics(log, 400)


@pytest.mark.parametrize("write", [interrupted_and_resumed, evaluated_again, extended, lambda log: metrics(log, 5)])
def test_last_events_agree_with_history(write: Callable[[EventLog], None], tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="a", algo="ppo", env_id="x", seed=1)
    write(log)
    whole = history(log.path)
    with LastEvents(log.path) as last:
        assert last.ended == whole.ended
        assert last.last("start") == whole.last("start")
        assert last.policy_steps == max(whole.policy_steps, (whole.ended or {}).get("policy_steps", 0))


def test_last_events_skip_damaged_and_incomplete_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    metrics(log, 100)
    with open(log.path, "a") as file:
        file.write('{"kind": "metrics", "time": 1, "policy_steps": "many", "values": {}}\n')
        file.write('{"kind": "metrics", "time": 1, "policy_steps": 300, "valu')
    with LastEvents(log.path) as last:
        assert last.policy_steps == 100


def test_last_events_ignore_text_within_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    end(log, "finished", 100)
    with open(log.path, "a") as file:
        file.write('{"kind": "other", "reason": {"kind": "end", "status": "failed", "policy_steps": 7}}\n')
    with LastEvents(log.path) as last:
        assert last.ended is not None
        assert last.ended["status"] == "finished"


def test_measured_prefers_evaluation_to_training_return(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    metrics(log, 100, **{"Rewards/rew_avg": 2.5})
    metrics(log, 200, **{"Loss/value_loss": 1.0})  # no episode ended in this window
    with LastEvents(log.path) as last:
        assert last.measured == Measured(2.5, "training")
    log.append("evaluation", policy_steps=200, final=False, greedy=RESULT)
    with LastEvents(log.path) as last:
        assert last.measured == Measured(5.0, "evaluation")
    log.append("evaluation", policy_steps=200, final=True, greedy=RESULT | {"mean": 6.0})
    with LastEvents(log.path) as last:
        assert last.measured == Measured(6.0, "final")


def test_missing_and_empty_logs_have_no_events(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name in ("missing.jsonl", "empty.jsonl"):
        with LastEvents(tmp_path / name) as last:
            assert (last.ended, last.policy_steps, last.measured) == (None, 0, None)

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from rlcore.store.events import EventLog, read_events


def test_read_events_returns_events_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.append("start", run_id="a")
    written = log.append("metrics", policy_steps=100, values={"x": 1.5})
    read = list(read_events(log.path))
    assert [e["kind"] for e in read] == ["start", "metrics"]
    assert read[1] == written and written["time"] > 1.7e9


def test_read_events_of_missing_log_is_empty(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_append_after_torn_line_starts_new_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="a")
    whole = log.path.read_bytes()
    for length in range(1, len(whole)):  # a kill can cut a line at any byte
        log.path.write_bytes(whole + whole[:length])
        assert [e["kind"] for e in read_events(log.path)] == ["start"]
        log.append("end", status="finished")
        assert [e["kind"] for e in read_events(log.path)] == ["start", "end"]


def test_log_cut_at_any_byte_loses_only_cut_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="é\nñ")
    log.append("metrics", policy_steps=64, values={"Loss/value_loss": 0.1 + 0.2, "x": -1e-300})
    log.append("evaluation", policy_steps=64, final=False, greedy={"mean": 9.5, "ci95": [1.0, 2.0]})
    log.append("end", status="interrupted", policy_steps=64, reason=None)
    whole, events = log.path.read_bytes(), list(read_events(log.path))
    for length in range(len(whole) + 1):
        log.path.write_bytes(whole[:length])
        left = whole[:length].count(b"\n")
        assert list(read_events(log.path)) == events[:left]
        log.append("resume", policy_steps=0)
        assert [*events[:left], "resume"] == [
            *list(read_events(log.path))[:-1],
            list(read_events(log.path))[-1]["kind"],
        ]


GARBAGE = {
    "not JSON": b"{]",
    "zeros of a lost page": bytes(300),
    "half of one event and half of another": b'{"kind": "metrics", "policy_steps": 1{"kind": "resume", "policy_st',
    "not text": b"\xff\xfe",
    "empty": b"",
    "a number": b"5",
    "a list": b'["metrics"]',
    "no kind": b'{"time": 1.0}',
    "a kind that is none": b'{"kind": {}}',
    "metrics of no moment": b'{"kind": "metrics", "values": {}}',
    "metrics without values": b'{"kind": "metrics", "policy_steps": 1, "values": [1]}',
    "an evaluation without figures": b'{"kind": "evaluation", "policy_steps": 1, "final": false, "greedy": {}}',
    "an evaluation of no kind": b'{"kind": "evaluation", "policy_steps": 1, "greedy": {"mean": 1.0}}',
    "deep": b"[" * 100_000,
    "time of wrong type": b'{"kind": "resume", "policy_steps": 1, "time": [1]}',
    "steps of wrong type": b'{"kind": "start", "policy_steps": "x"}',
    "returns of wrong type": b'{"kind": "baseline", "mean": 1.0, "ci95": ["x", 2.0]}',
    "huge number": b'{"kind": "resume", "policy_steps": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_read_events_skips_damaged_line_with_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="a")
    with open(log.path, "ab") as handle:
        handle.write(GARBAGE[name] + b"\n")
    log.append("metrics", policy_steps=1, values={"x": 1.0})
    for _ in range(2):
        assert [e["kind"] for e in read_events(log.path)] == ["start", "metrics"]
    (message,) = caplog.messages
    assert f"{log.path}: line 2 is damaged" in message


def test_append_waits_for_writing_process(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    line = b'{"kind": "metrics", "policy_steps": 1, "values": {}}\n'
    with open(log.path, "ab", buffering=0) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        writer.write(line[:20])
        pid = os.fork()
        if pid == 0:
            os.close(writer.fileno())  # otherwise the lock, which belongs to the open file, would stay after its owner
            log.append("metrics", policy_steps=2, values={})
            os._exit(0)
        time.sleep(0.3)
        writer.write(line[20:])
    assert os.waitpid(pid, 0)[1] == 0
    assert [e["policy_steps"] for e in read_events(log.path)] == [1, 2]


def test_read_events_of_torn_first_line_is_empty(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.write_bytes(b'{"kind": "sta')
    assert list(read_events(log.path)) == []
    log.append("start", run_id="a")
    assert len(list(read_events(log.path))) == 1


def test_read_events_returns_repeated_point_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for attempt in (1, 2):
        log.append("metrics", policy_steps=100, values={"x": attempt})
        log.append("evaluation", policy_steps=100, final=False, greedy={"mean": attempt})
        log.append("evaluation", policy_steps=100, final=True, greedy={"mean": attempt})
        log.append("resume", policy_steps=100)
    read = list(read_events(log.path))
    assert [e["kind"] for e in read] == ["metrics", "evaluation", "evaluation", "resume", "resume"]
    assert read[0]["values"] == {"x": 1}


def test_read_events_keeps_final_evaluations_with_other_episodes(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for episodes in (5, 5, 8, 5):
        log.append("evaluation", policy_steps=100, final=True, greedy={"mean": 1.0, "episodes": episodes})
    assert [e["greedy"]["episodes"] for e in read_events(log.path)] == [5, 8, 5]


def test_append_refuses_nan(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append("metrics", policy_steps=1, values={"x": float("nan")})
    assert not log.path.exists()


def test_append_writes_one_json_line_per_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="two\nlines", algo="é")
    (line,) = log.path.read_text().splitlines()
    assert json.loads(line)["run_id"] == "two\nlines"

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from rlcore.store.events import EventLog, read_events


def test_events_are_read_in_order_with_their_fields(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.append("start", run_id="a")
    written = log.append("metrics", policy_steps=100, values={"x": 1.5})
    read = list(read_events(log.path))
    assert [e["kind"] for e in read] == ["start", "metrics"]
    assert read[1] == written and written["time"] > 1.7e9


def test_a_log_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "events.jsonl")) == []


def test_a_torn_last_line_is_dropped_and_the_next_event_starts_a_line_of_its_own(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="a")
    whole = log.path.read_bytes()
    for length in range(1, len(whole)):  # a kill may tear a line anywhere
        log.path.write_bytes(whole + whole[:length])
        assert [e["kind"] for e in read_events(log.path)] == ["start"]
        log.append("end", status="finished")
        assert [e["kind"] for e in read_events(log.path)] == ["start", "end"]


def test_cut_at_any_byte_a_log_loses_the_event_that_was_cut_and_no_other(tmp_path: Path) -> None:
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
    "huge number": b'{"kind": "resume", "policy_steps": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_line_that_is_no_event_is_left_out_and_said_with_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="a")
    with open(log.path, "ab") as handle:
        handle.write(GARBAGE[name] + b"\n")
    log.append("metrics", policy_steps=1, values={"x": 1.0})
    for _ in range(2):
        assert [e["kind"] for e in read_events(log.path)] == ["start", "metrics"]
    (said,) = caplog.messages
    assert f"{log.path}: line 2 is damaged" in said


def test_a_line_that_another_process_is_writing_is_not_cut_off_as_torn(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    line = b'{"kind": "metrics", "policy_steps": 1, "values": {}}\n'
    with open(log.path, "ab", buffering=0) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        writer.write(line[:20])
        pid = os.fork()
        if pid == 0:
            os.close(writer.fileno())  # else the lock, which is of the open file, would outlive its owner
            log.append("metrics", policy_steps=2, values={})
            os._exit(0)
        time.sleep(0.3)
        writer.write(line[20:])
    assert os.waitpid(pid, 0)[1] == 0
    assert [e["policy_steps"] for e in read_events(log.path)] == [1, 2]


def test_a_torn_first_line_leaves_an_empty_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.write_bytes(b'{"kind": "sta')
    assert list(read_events(log.path)) == []
    log.append("start", run_id="a")
    assert len(list(read_events(log.path))) == 1


def test_a_point_written_again_after_a_kill_is_read_once_and_the_first_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for attempt in (1, 2):
        log.append("metrics", policy_steps=100, values={"x": attempt})
        log.append("evaluation", policy_steps=100, final=False, greedy={"mean": attempt})
        log.append("evaluation", policy_steps=100, final=True, greedy={"mean": attempt})
        log.append("resume", policy_steps=100)
    read = list(read_events(log.path))
    assert [e["kind"] for e in read] == ["metrics", "evaluation", "evaluation", "resume", "resume"]
    assert read[0]["values"] == {"x": 1}


def test_a_final_evaluation_over_other_episodes_is_another_point_and_the_last_one_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for episodes in (5, 5, 8, 5):
        log.append("evaluation", policy_steps=100, final=True, greedy={"mean": 1.0, "episodes": episodes})
    assert [e["greedy"]["episodes"] for e in read_events(log.path)] == [5, 8, 5]


def test_numbers_that_json_does_not_know_are_refused_and_write_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append("metrics", policy_steps=1, values={"x": float("nan")})
    assert not log.path.exists()


def test_every_line_is_json_by_itself(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="two\nlines", algo="é")
    (line,) = log.path.read_text().splitlines()
    assert json.loads(line)["run_id"] == "two\nlines"

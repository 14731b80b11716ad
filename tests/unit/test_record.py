from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcore.run.record import EventLog, read_events


def test_events_are_read_in_order_with_their_fields(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.append("start", run_id="a")
    written = log.append("metrics", env_steps=100, values={"x": 1.5})
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


def test_a_torn_first_line_leaves_an_empty_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.write_bytes(b'{"kind": "sta')
    assert list(read_events(log.path)) == []
    log.append("start", run_id="a")
    assert len(list(read_events(log.path))) == 1


def test_a_point_written_again_after_a_kill_is_read_once_and_the_first_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for attempt in (1, 2):
        log.append("metrics", env_steps=100, values={"x": attempt})
        log.append("evaluation", env_steps=100, final=False, greedy={"mean": attempt})
        log.append("evaluation", env_steps=100, final=True, greedy={"mean": attempt})
        log.append("resume", env_steps=100)
    read = list(read_events(log.path))
    assert [e["kind"] for e in read] == ["metrics", "evaluation", "evaluation", "resume", "resume"]
    assert read[0]["values"] == {"x": 1}


def test_a_final_evaluation_over_other_episodes_is_another_point_and_the_last_one_counts(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for episodes in (5, 5, 8, 5):
        log.append("evaluation", env_steps=100, final=True, greedy={"mean": 1.0, "episodes": episodes})
    assert [e["greedy"]["episodes"] for e in read_events(log.path)] == [5, 8, 5]


def test_numbers_that_json_does_not_know_are_refused_and_write_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append("metrics", env_steps=1, values={"x": float("nan")})
    assert not log.path.exists()


def test_every_line_is_json_by_itself(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("start", run_id="two\nlines", algo="é")
    (line,) = log.path.read_text().splitlines()
    assert json.loads(line)["run_id"] == "two\nlines"

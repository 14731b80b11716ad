"""Progress of several trainings, as lines without control characters for files."""

from __future__ import annotations

import io
from typing import Any

from flows.cli.progress import JobLines


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(*events: tuple[float, str, dict[str, Any]], total: int = 4) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    jobs = JobLines("trials", total, stream=stream, clock=clock)
    for at, kind, facts in events:
        clock.now = at
        jobs.on_event(kind, facts)
    jobs.close()
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()
    return stream.getvalue().splitlines()


def job(number: int, steps: int, score: float | None = None) -> dict[str, Any]:
    return {
        "label": f"trial {number}: lr=1",
        "number": number,
        "policy_steps": steps,
        "total_steps": 100,
        "return": score,
    }


def ended(number: int | None, label: str = "", sentence: str = "") -> dict[str, Any]:
    return {"label": label or f"trial {number}: lr=1", "number": number, "state": "over", "sentence": sentence}


def trial(number: int, state: str, value: float | None, sentence: str = "") -> dict[str, Any]:
    facts = {"number": number, "label": f"trial {number}: lr=1", "state": state, "value": value, "sentence": sentence}
    return facts | {"policy_steps": 10}


def test_job_lines_show_ended_running_and_best() -> None:
    lines = shown(
        (1.0, "job", job(0, 50, 20.0)),
        (2.0, "job", job(1, 25)),
        (30.0, "ended", ended(0)),
        (30.0, "trial", trial(0, "complete", 120.5)),
        (60.0, "job", job(1, 50, 33.3)),
    )
    assert lines[0].startswith("trials  0/4  0: 50% 20.0")
    assert "trial 0: 120.5 · lr=1" in lines
    last = lines[-1]
    assert "1/4" in last and "best 120.5" in last and "1: 50% 33.3" in last


def test_job_lines_show_final_evaluation() -> None:
    events = [(60.0 + 30 * at + number, "job", job(number, 50 * at)) for at in (0, 1, 2) for number in range(4)]
    lines = shown(*events, (200.0, "job", job(0, 100)))
    assert "3: final evaluation" in lines[-1] and lines[-1].endswith("ETA -")


def test_job_lines_show_no_training_return_next_to_final_evaluation() -> None:
    """146.1 is the mean return of training episodes, not a result of the final evaluation."""
    lines = shown((60.0, "job", job(0, 50, 120.0)), (120.0, "job", job(0, 100, 146.1)))
    assert "0: 50% 120.0" in lines[0]
    assert "0: final evaluation  ETA" in lines[-1]


def test_job_lines_eta_counts_only_new_training() -> None:
    """Neither the start-up time nor the half of trial 0 that was trained before a resume counts."""
    lines = shown(
        (60.0, "job", job(0, 50)),
        (60.5, "job", job(1, 0)),
        (80.0, "ended", ended(0)),
        (100.0, "job", job(1, 50)),
    )
    assert lines[0].endswith("ETA -")
    # Two halves of a trial take 40 s, so the other 2.5 trials take 100 s.
    assert lines[-1].endswith("ETA 1:40")


def test_job_lines_print_line_per_ended_job() -> None:
    lines = shown(
        (1.0, "trial", trial(1, "pruned", 35.0)),
        (2.0, "trial", trial(2, "fail", None, "algo.gamma=2: must be <= 1")),
        (3.0, "ended", ended(None, "winner_0001, seed 5")),
        (4.0, "job", {"label": "trial 3: lr=1", "number": 3, "doing": "worker 7 was killed by signal 9"}),
    )
    assert "trial 1: pruned at 35.0 · lr=1" in lines
    assert "trial 2: failed: algo.gamma=2: must be <= 1 · lr=1" in lines
    assert "winner_0001, seed 5: done" in lines
    assert "trial 3: worker 7 was killed by signal 9" in lines


def test_job_lines_restart_count_in_new_phase() -> None:
    lines = shown(
        (1.0, "ended", ended(0)),
        (2.0, "phase", {"doing": "confirmation", "total": 20}),
        (3.0, "ended", ended(None, "default, seed 5")),
    )
    assert next(line for line in lines if line.startswith("confirmation")).startswith("confirmation  1/20")

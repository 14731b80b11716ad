"""Boundaries of training: when they come, what is due there, and when training ends."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.config.run import RunConfig
from rlcore.run_config import build_config
from rlcore.train.boundary import Boundary, boundary_at, budget, is_scheduled, next_stop, stop_reason
from rlcore.train.stop_conditions import StopConditions
from tests.runs import values


def config(**dotted: Any) -> RunConfig:
    return build_config(values("CartPole-v1", 1000, **{"checkpoint__every": 100, "evaluation__every": 250} | dotted))


# Iterations of 32 rows of 2 environments: 15 of them, 960 policy steps, are whole within the 1,000.
@pytest.mark.parametrize(("spent", "stop"), [(0, 100), (99, 100), (100, 200), (200, 250), (260, 300), (930, 960)])
def test_next_stop_is_next_multiple_or_end(spent: int, stop: int) -> None:
    assert next_stop(config(), spent) == stop


@pytest.mark.parametrize(
    ("total", "envs", "ranks", "spent"),
    [(1000, 2, 1, 960), (64, 2, 1, 64), (63, 2, 1, 64), (1000, 32, 1, 1024), (1000, 2, 2, 896), (65536, 1, 1, 65536)],
)
def test_budget_is_whole_iterations_and_at_least_one(total: int, envs: int, ranks: int, spent: int) -> None:
    assert budget(config(algo__total_steps=total, env__num_envs=envs, fabric__devices=ranks)) == spent


def test_default_intervals_give_20_checkpoints_and_10_evaluations() -> None:
    run = config(checkpoint__every=None, evaluation__every=None)
    assert (run.checkpoint_every, run.evaluation_every) == (50, 100)


@pytest.mark.parametrize("total", [8192, 65536, 1009, 39936, 30])
def test_default_intervals_evaluate_the_last_policy(total: int) -> None:
    run = config(algo__total_steps=total, checkpoint__every=None, evaluation__every=None)
    ends = range(64, budget(run) + 1, 64)
    reasons = [*[None] * (len(ends) - 1), "finished"]
    boundaries = [boundary_at(run, end - 64, end, reason) for end, reason in zip(ends, reasons, strict=True)]
    assert boundaries[-1].due == ("checkpoint", "evaluate")
    assert sum("evaluate" in boundary.due for boundary in boundaries) in (1, 9, 10), "an iteration may pass two"


@pytest.mark.parametrize(
    ("before", "after", "reason", "due"),
    [
        (0, 128, None, ("checkpoint",)),
        (128, 192, None, ()),
        (192, 256, None, ("checkpoint", "evaluate")),  # an evaluation is always of a checkpoint
        (0, 300, None, ("checkpoint", "evaluate")),  # an iteration may pass several
        (900, 964, "target_return", ("checkpoint",)),
        (
            900,
            960,
            "finished",
            ("checkpoint", "evaluate"),
        ),  # includes what would be due in the incomplete last iteration
        (0, 300, "dry_run", ("checkpoint",)),
    ],
)
def test_boundary_at_lists_what_was_passed(before: int, after: int, reason: str | None, due: tuple[str, ...]) -> None:
    boundary = boundary_at(config(), before, after, reason)
    assert boundary == Boundary(after, due, reason is not None, reason)


def test_is_scheduled_excludes_evaluations_and_interruptions() -> None:
    run = config(evaluation__every=64)  # the iterations of 64 rows that pass 100, 200, …, and the end
    scheduled = [spent for spent in range(64, 961, 64) if is_scheduled(run, spent)]
    assert scheduled == [128, 256, 320, 448, 512, 640, 704, 832, 960]
    assert is_scheduled(config(checkpoint__every=5000), 960)


def test_save_last_false_keeps_checkpoint_with_evaluation() -> None:
    run = config(checkpoint__save_last=False)
    assert boundary_at(run, 900, 964, "plateau").due == ()
    assert boundary_at(run, 900, 960, "finished").due == ("checkpoint", "evaluate")
    assert boundary_at(run, 0, 300, "dry_run").due == ("checkpoint",), "which its last evaluation plays"


@pytest.mark.parametrize(
    ("rule", "scores", "ends"),
    [
        ({}, [9, 9, 9], None),
        ({"target_return": 10}, [9, 9.9], None),
        ({"target_return": 10}, [9, 10], "upper_bound"),
        ({"patience": 2}, [5, 4, 4.5], "stops_increasing"),
        ({"patience": 2}, [5, 4, 6], None),
        ({"patience": 2, "min_delta": 2}, [5, 6, 6.5], "stops_increasing"),  # improvements below min_delta do not count
    ],
)
def test_stop_reason_follows_early_stop_rules(rule: dict[str, float], scores: list[float], ends: str | None) -> None:
    run = config(**{f"early_stop__{key}": value for key, value in rule.items()})
    stop = StopConditions.from_config(run.stop)
    for i, score in enumerate(scores):
        assert stop_reason(run, 10, 10, stop.reason) is None
        stop.add_evaluation(250 * (i + 1), score)
    reason = stop_reason(run, 10, 10, stop.reason)
    assert (reason and reason.partition(":")[0]) == ends


def test_stop_reason_at_end_and_in_dry_run() -> None:
    assert [stop_reason(config(), done, done, None) for done in (14, 15)] == [None, "finished"]
    assert stop_reason(config(), 15, 15, "upper_bound") == "finished"
    assert [stop_reason(config(dry_run=True), 1, updates) for updates in (0, 1)] == [None, "dry_run"]

"""When a boundary comes, what is due there and when training is over: from config and scores alone."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.config.groups import RunConfig
from rlcore.run_config import build_config
from rlcore.train.boundary import Boundary, boundary_at, budget, is_scheduled, next_stop, stop_reason
from tests.runs import values


def config(**dotted: Any) -> RunConfig:
    return build_config(values("CartPole-v1", 1000, **{"checkpoint__every": 100, "evaluation__every": 250} | dotted))


# Iterations of 32 rows of 2 environments: 15 of them, 960 policy steps, are whole within the 1,000.
@pytest.mark.parametrize(("spent", "stop"), [(0, 100), (99, 100), (100, 200), (200, 250), (260, 300), (930, 960)])
def test_the_next_stop_is_the_next_multiple_or_the_end(spent: int, stop: int) -> None:
    assert next_stop(config(), spent) == stop


@pytest.mark.parametrize(
    ("total", "envs", "ranks", "spent"),
    [(1000, 2, 1, 960), (64, 2, 1, 64), (63, 2, 1, 64), (1000, 32, 1, 1024), (1000, 2, 2, 896), (65536, 1, 1, 65536)],
)
def test_a_budget_is_whole_iterations_as_many_as_fit_and_one_at_least(
    total: int, envs: int, ranks: int, spent: int
) -> None:
    assert budget(config(algo__total_steps=total, env__num_envs=envs, fabric__devices=ranks)) == spent


def test_without_numbers_there_are_20_checkpoints_and_10_evaluations() -> None:
    run = config(checkpoint__every=None, evaluation__every=None)
    assert (run.checkpoint_every, run.evaluation_every) == (50, 100)


@pytest.mark.parametrize(
    ("before", "after", "reason", "due"),
    [
        (0, 128, None, ("checkpoint",)),
        (128, 192, None, ()),
        (192, 256, None, ("checkpoint", "evaluate")),  # an evaluation is always of a checkpoint
        (0, 300, None, ("checkpoint", "evaluate")),  # an iteration may pass several
        (900, 964, "target_return", ("checkpoint",)),
        (900, 960, "finished", ("checkpoint", "evaluate")),  # what would come in the rest, which is no whole iteration
        (0, 300, "dry_run", ("checkpoint",)),
    ],
)
def test_what_was_passed_is_due(before: int, after: int, reason: str | None, due: tuple[str, ...]) -> None:
    boundary = boundary_at(config(), before, after, reason)
    assert boundary == Boundary(after, due, reason is not None, reason)


def test_is_scheduled_leaves_out_evaluations_and_interruptions() -> None:
    run = config(evaluation__every=64)  # iterations of 64 rows pass 100, 200, … at these; the last one is the end
    scheduled = [spent for spent in range(64, 961, 64) if is_scheduled(run, spent)]
    assert scheduled == [128, 256, 320, 448, 512, 640, 704, 832, 960]
    assert is_scheduled(config(checkpoint__every=5000), 960)


def test_the_last_checkpoint_may_be_left_out_unless_it_is_evaluated() -> None:
    run = config(checkpoint__save_last=False)
    assert boundary_at(run, 900, 964, "plateau").due == ()
    assert boundary_at(run, 900, 960, "finished").due == ("checkpoint", "evaluate")
    assert boundary_at(run, 0, 300, "dry_run").due == ("checkpoint",), "which its last evaluation plays"


@pytest.mark.parametrize(
    ("rule", "scores", "reason"),
    [
        ({}, [9, 9, 9], None),
        ({"target_return": 10}, [9, 9.9], None),
        ({"target_return": 10}, [10, 9], "target_return"),
        ({"patience": 2}, [5, 4, 4.5], "plateau"),
        ({"patience": 2}, [5, 4, 6], None),
        ({"patience": 2, "min_delta": 2}, [5, 6, 6.5], "plateau"),  # gains, but smaller ones than count
    ],
)
def test_early_stop_looks_at_the_scores(rule: dict[str, float], scores: list[float], reason: str | None) -> None:
    run = config(**{f"early_stop__{key}": value for key, value in rule.items()})
    by_steps = {250 * (i + 1): score for i, score in enumerate(scores)}
    assert stop_reason(run, 10, 10, 750, by_steps) == reason


def test_scores_beyond_the_checkpoint_that_was_resumed_do_not_count() -> None:
    assert stop_reason(config(early_stop__target_return=10), 10, 10, 500, {250: 1.0, 750: 99.0}) is None


def test_training_is_over_at_its_end_and_after_the_first_gradient_step_of_a_dry_run() -> None:
    assert [stop_reason(config(), done, done, 900, {}) for done in (14, 15)] == [None, "finished"]
    assert [stop_reason(config(dry_run=True), 1, updates, 64, {}) for updates in (0, 1)] == [None, "dry_run"]

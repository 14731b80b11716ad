"""When a boundary comes, what is due there and when training is over: from config and scores alone."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.config.groups import RunConfig
from rlcore.store.run_config import build_config
from rlcore.train.boundary import Boundary, boundary_at, next_stop, why_over
from tests.runs import values


def config(**dotted: Any) -> RunConfig:
    return build_config(values("CartPole-v1", 1000, **{"checkpoint__every": 100, "evaluation__every": 250} | dotted))


@pytest.mark.parametrize(("env_steps", "stop"), [(0, 100), (99, 100), (100, 200), (200, 250), (260, 300), (960, 1000)])
def test_the_next_stop_is_the_next_multiple_or_the_end(env_steps: int, stop: int) -> None:
    assert next_stop(config(), env_steps) == stop


def test_without_numbers_there_are_20_checkpoints_and_10_evaluations() -> None:
    run = config(checkpoint__every=None, evaluation__every=None)
    assert (run.checkpoint_every, run.evaluation_every) == (50, 100)


@pytest.mark.parametrize(
    ("before", "env_steps", "reason", "due"),
    [
        (0, 128, None, ("checkpoint",)),
        (128, 192, None, ()),
        (192, 256, None, ("checkpoint", "evaluate")),  # an evaluation is always of a checkpoint
        (0, 300, None, ("checkpoint", "evaluate")),  # an iteration may pass several
        (900, 964, "target_return", ("checkpoint",)),
        (964, 1028, "finished", ("checkpoint", "evaluate")),
        (0, 300, "dry_run", ("checkpoint",)),
    ],
)
def test_what_was_passed_is_due(before: int, env_steps: int, reason: str | None, due: tuple[str, ...]) -> None:
    assert boundary_at(config(), before, env_steps, reason) == Boundary(env_steps, due, reason is not None, reason)


def test_the_last_checkpoint_may_be_left_out_unless_it_is_evaluated() -> None:
    run = config(checkpoint__save_last=False)
    assert boundary_at(run, 900, 964, "plateau").due == ()
    assert boundary_at(run, 964, 1028, "finished").due == ("checkpoint", "evaluate")


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
    assert why_over(run, 750, 10, by_steps) == reason


def test_scores_beyond_the_checkpoint_that_was_resumed_do_not_count() -> None:
    assert why_over(config(early_stop__target_return=10), 500, 10, {250: 1.0, 750: 99.0}) is None


def test_training_is_over_at_its_end_and_after_one_iteration_of_a_dry_run() -> None:
    assert why_over(config(), 999, 10, {}) is None
    assert why_over(config(), 1000, 10, {}) == "finished"
    assert [why_over(config(dry_run=True), 64, done, {}) for done in (0, 1)] == [None, "dry_run"]

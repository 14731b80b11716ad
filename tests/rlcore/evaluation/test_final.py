"""Policies side by side on a real environment: each plays the same episodes as alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.evaluation import evaluation, final
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import checkpointed_run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDirectory]:
    return [checkpointed_run(tmp_path / str(weights), str(weights), weights=weights) for weights in (1, 2)]


def play_side_by_side(runs: list[RunDirectory], enough: Any, episodes: int = 24, **more: Any) -> list[dict[str, Any]]:
    paths = [checkpoint.resolve(run, "latest") for run in runs]
    return final.side_by_side(runs[0], paths, episodes, enough, round=3, **more)


def test_side_by_side_equals_single_evaluations(runs: list[RunDirectory]) -> None:
    progress: list[tuple[int, int]] = []
    both = play_side_by_side(
        runs, lambda returns: False, on_progress=lambda done, total: progress.append((done, total))
    )
    for run, result in zip(runs, both, strict=True):
        path = checkpoint.resolve(run, "latest")
        assert result == final.evaluate_checkpoint(runs[0], path, 24, round=3)
    assert progress[-1] == (48, 48)


def test_side_by_side_plays_in_turns_until_enough(runs: list[RunDirectory], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    playing = evaluation.playing

    def record_order(agent: Any, *arguments: Any, **options: Any) -> Any:
        for episode in playing(agent, *arguments, **options):
            order.append(id(agent))
            yield episode

    monkeypatch.setattr(evaluation, "playing", record_order)
    seen: list[int] = []

    def enough(returns: list[list[float]]) -> bool:
        seen.append(len(returns[0]))
        assert len(returns[0]) == len(returns[1])
        return len(returns[0]) >= 5

    both = play_side_by_side(runs, enough)
    first = dict.fromkeys(order)
    assert len(first) == 2 and order == [*first] * (len(order) // 2)  # a step of each in turn
    assert both[0]["episodes"] == both[1]["episodes"] == seen[-1] < 24
    whole = play_side_by_side(runs, lambda returns: False)
    assert both[0]["returns"] == whole[0]["returns"][: seen[-1]]


def test_side_by_side_without_ended_episode_is_empty(runs: list[RunDirectory]) -> None:
    assert play_side_by_side(runs, lambda returns: True) == []

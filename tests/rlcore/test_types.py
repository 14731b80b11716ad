"""Finished episodes as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlcore import types
from rlcore.config.groups import MetricConfig
from rlcore.train.metrics import MetricsWindow
from rlcore.types import Episode, Episodes

FEW = [Episode(0, 1.5, 3), Episode(2, -2.0, 7)]


def test_episodes_are_a_sequence_of_episodes() -> None:
    ended = Episodes.of(FEW)
    assert Episodes.of(ended) is ended
    assert ended == FEW and ended != FEW[:1] and len(ended) == 2
    assert ended[1] == FEW[1] and ended[1:] == FEW[1:] and [*ended] == FEW


def test_popped_episodes_do_not_change_later() -> None:
    ended = Episodes.of(FEW)
    popped = ended.pop()
    ended.extend([5], [0.5], [1])
    assert popped == FEW and ended == [Episode(5, 0.5, 1)]


def test_saved_episodes_are_restored_from_arrays() -> None:
    state = Episodes.of(FEW).state_dict()
    assert all(isinstance(column, np.ndarray) for column in state.values())
    assert Episodes.from_state(state) == FEW


def test_metrics_of_episodes_create_no_object_per_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("an Episode was created")

    window, ended = MetricsWindow(MetricConfig()), Episodes.of(FEW)
    monkeypatch.setattr(types.Episode, "__init__", refuse)
    window.add([], ended)
    assert window.values == {"Rewards/rew_avg": [1.5, -2.0], "Game/ep_len_avg": [3.0, 7.0]}

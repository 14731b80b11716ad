"""Stored state of several ranks: only the parts that differ from the first rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.store.checkpoint import nested_state
from rlcore.train.components import digests, parts_that_differ, with_parts

FIRST: dict[str, Any] = {
    "agent": {"weight": torch.ones(3, 2), "bias": torch.zeros(2)},
    "own": {"running": torch.tensor([1.0, 2.0]), "seen": np.array([1, 2]), "names": ["a", {"b": torch.ones(1)}]},
    "of": {0: {"count": 3}},
    "empty": {},
    "updates": 7,
}


def changed(place: tuple[Any, ...], value: Any, state: Any = FIRST) -> Any:
    return {**state, place[0]: changed(place[1:], value, state[place[0]])} if place else value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("own", "running"), torch.tensor([1.0, 2.5])),
        (("own", "running"), torch.tensor([1.0, 2.0, 3.0])),
        (("own", "seen"), np.array([1, 3])),
        (("own", "names"), ["a", {"b": torch.zeros(1)}]),
        (("of",), {1: {"count": 3}}),  # other keys, for its own environments
        (("of", 0, "count"), -3),
        (("empty",), {"more": None}),
        (("updates",), {}),
        (("agent", "bias"), torch.tensor([0.0, -0.0])),
    ],
    ids=str,
)
def test_parts_that_differ_restore_state_of_rank(place: Any, value: Any) -> None:
    other = changed(place, value)
    parts = list(parts_that_differ(other, digests(FIRST)))
    assert [tuple(at) for at, _ in parts] == [place]
    stored = nested_state.decode(*nested_state.encode({"first": FIRST, "parts": parts}))
    assert nested_state.encode(with_parts(stored["first"], stored["parts"])) == nested_state.encode(other)
    assert nested_state.encode(stored["first"]) == nested_state.encode(FIRST)


def test_parts_that_differ_of_equal_rank_are_empty() -> None:
    same = nested_state.decode(*nested_state.encode(FIRST))
    assert not list(parts_that_differ(same, digests(FIRST)))
    assert with_parts(FIRST, []) is FIRST

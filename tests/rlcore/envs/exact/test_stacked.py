"""Stacked states of many environments: exact round trip, and a number of parts that is independent of their count."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlcore.envs.exact.stacked import stack, stack_encoded, unstack
from rlcore.envs.plain import OpaqueValueError, encode
from rlcore.store.checkpoint import nested_state

RNG = [np.random.Generator(np.random.PCG64(seed)).bit_generator.state for seed in range(3)]
CASES: dict[str, list[Any]] = {
    "numbers": [1, 2, -3],
    "more than 64 bits": [2**127 + 1, 5, 2**64],
    "beyond 128 bits, and below 0": [2**130, -(2**70), 0],
    "some of more than 64 bits": [2**64, 3, 2**64],
    "floats": [0.1, float("inf"), -0.0],
    "zeros of either sign": [0.0, -0.0, 0.0],
    "truths": [True, False, True],
    "not of one kind": [True, 1, 1.0],
    "text": ["a", "b", "a"],
    "nothing": [None, None, 3],
    "arrays": [np.arange(4, dtype=np.uint8) + i for i in range(3)],
    "arrays of no dimension": [np.array(i) for i in range(3)],
    "arrays of other lengths": [np.ones((n, 2), np.float32) * n for n in (0, 3, 1)],
    "arrays of other kinds": [np.zeros(2), np.zeros(2, np.int8), np.zeros((2, 1))],
    "generators": RNG,
    "mappings": [{"a": i, "b": {"c": np.full(2, i)}} for i in range(3)],
    "mappings in another order": [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}],
    "mappings of other keys": [{"0": 1}, {"0": 1, "1": 2}, {}],
    "the same everywhere": [{"kind": "generator", "items": {}, "maxlen": None, "n": 7}] * 3,
}


def exactly(value: Any) -> str:
    """Representation of a value with types, order of keys, and bits."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {exactly(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    return f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_unstack_restores_stacked_values_exactly(values: list[Any]) -> None:
    read = nested_state.decode(*nested_state.encode(stack(values)))
    assert [exactly(value) for value in unstack(read, 3)] == [exactly(value) for value in values]


def test_unstack_returns_independent_copies() -> None:
    stacked = stack([{"a": np.zeros(2)}, {"a": np.ones(2)}])
    first, second = unstack(stacked, 2)
    first["a"][:] = 5
    assert second["a"].tolist() == [1, 1] and unstack(stacked, 2)[0]["a"].tolist() == [0, 0]


def test_stack_size_is_independent_of_environment_count() -> None:
    def state(i: int) -> dict[str, Any]:
        bits = np.random.PCG64(i).state
        beyond = {"beyond": None if i % 2 else i, "seen": {"0": i} if i % 3 else {}}
        return {"steps": i, "state": np.full(4, i), "rng": bits, "name": "CartPole"} | beyond

    few, many = (nested_state.encode(stack([state(i) for i in range(count)]))[0] for count in (6, 3000))
    assert json.loads(few) == json.loads(many)


def test_unstack_refuses_other_environment_count() -> None:
    for values in ([1, 2, 3], [np.zeros(2)] * 3, [np.zeros(1), np.zeros(2), np.zeros(3)], [{"a": 1}, {}, {}]):
        with pytest.raises(ValueError, match="3 environments"):
            unstack(stack(values), 4)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        [2**63, 2**127, 2**64 + 5],
        [2**63, 5, 7],
        [0.0, -0.0, 1.5],
        [1.0, float("inf"), 2.0],
        [True, True, True],
        [True, False, True],
        [None, None, None],
        [1, 1.0, True],
        ["a", "a", "b"],
        [np.arange(2), np.arange(2), np.arange(2)],
        [{"a": 1, "b": 2**70}, {"a": 2, "b": 2**90}, {"a": 3, "b": 2**80}],
        [{"a": 1}, {"b": 1}, {1: 1}],
        [np.random.default_rng(seed) for seed in range(3)],
        [np.random.default_rng(0), np.random.Generator(np.random.MT19937(0)), None],
    ],
)
def test_stack_encoded_matches_stack_of_encoded_values(values: list[Any]) -> None:
    found, expected = stack_encoded(values), stack([encode(value) for value in values])
    assert nested_state.encode(found)[0] == nested_state.encode(expected)[0]
    for ours, theirs in zip(unstack(found, 3), unstack(expected, 3), strict=True):
        assert repr(ours) == repr(theirs)


def test_stack_encoded_refuses_opaque_values() -> None:
    with pytest.raises(OpaqueValueError):
        stack_encoded([object(), object()])
    with pytest.raises(OpaqueValueError):  # a table inside a container
        stack_encoded([{"a": np.array([None])}, {"a": np.array([None])}])

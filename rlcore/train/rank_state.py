"""Learner state of several ranks: the whole state of rank 0, and the differences of the other ranks.

Parameters and optimizer state are bit-identical on every rank. State that depends on a rank's environments (returns of
unfinished episodes, statistics, a random stream) differs and must be restored on the same rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcore.store.checkpoint import nested_state
from rlcore.types import Ranks, State

Part = list[Any]  # [keys, outermost first; value]


def parts_of_this_rank(state: State, ranks: Ranks) -> list[Part]:
    """Return the parts of a learner's state on this rank that differ from the learner's state on rank 0.

    On rank 0, the result is []. All ranks must call this function together.
    """
    if ranks.size == 1:
        return []
    first = ranks.gather(digests(state) if ranks.rank == 0 else None)[0]
    return list(parts_that_differ(state, first))


def digests(state: Any) -> Any:
    """Return a copy of a nested state in which every value that is not a mapping is replaced by its SHA-256 digest."""
    if isinstance(state, Mapping):
        return {key: digests(value) for key, value in state.items()}
    digest = hashlib.sha256()
    for part in nested_state.encode(state):
        digest.update(part)
    return digest.hexdigest()


def parts_that_differ(state: Any, first: Any, path: tuple[Any, ...] = ()) -> Iterator[Part]:
    """Compare a nested state with another state, and yield the innermost values that differ, with their keys.

    `first` is the result of `digests` for the other state. `path` contains the keys that lead to `state`.
    """
    if isinstance(state, Mapping) and isinstance(first, Mapping) and state.keys() == first.keys():
        for key, value in state.items():
            yield from parts_that_differ(value, first[key], (*path, key))
    elif digests(state) != first:
        yield [list(path), state]


def with_parts(state: Any, parts: Iterable[Part]) -> Any:
    """Return a copy of a nested state in which `parts`, the result of `parts_of_this_rank`, replace the values."""
    for path, value in parts:
        state = _with(state, path, value)
    return state


def _with(state: Any, path: list[Any], value: Any) -> Any:
    if not path:
        return value
    return {**state, path[0]: _with(state[path[0]], path[1:], value)}

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
    """Return the parts of a learner's state that differ from rank 0; [] on rank 0. All ranks must call it together."""
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


def parts_that_differ(state: Any, first: Any, place: tuple[Any, ...] = ()) -> Iterator[Part]:
    """Yield the smallest parts of a state that differ from another state, given as its `digests`."""
    if isinstance(state, Mapping) and isinstance(first, Mapping) and state.keys() == first.keys():
        for key, value in state.items():
            yield from parts_that_differ(value, first[key], (*place, key))
    elif digests(state) != first:
        yield [list(place), state]


def with_parts(state: Any, parts: Iterable[Part]) -> Any:
    """Return a copy of a nested state with the given parts replaced."""
    for place, value in parts:
        state = _with(state, place, value)
    return state


def _with(state: Any, place: list[Any], value: Any) -> Any:
    if not place:
        return value
    return {**state, place[0]: _with(state[place[0]], place[1:], value)}

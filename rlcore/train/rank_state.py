"""State of the learners of several ranks: the first one's whole state, and of the others what is not the same.

Parameters and optimizers are the same bits on every rank. What an algorithm keeps of a rank's own environments (open
returns, statistics, a stream) is not, and must come back to that rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcore.store.checkpoint import nested_state

Part = list[Any]  # keys from the outermost on, and what lies there


def digests(state: Any) -> Any:
    """A nested state with a digest in the place of everything that is no mapping."""
    if isinstance(state, Mapping):
        return {key: digests(value) for key, value in state.items()}
    digest = hashlib.sha256()
    for part in nested_state.encode(state):
        digest.update(part)
    return digest.hexdigest()


def parts_that_differ(state: Any, first: Any, place: tuple[Any, ...] = ()) -> Iterator[Part]:
    """The smallest parts of a state that are not as `first` says, which is `digests` of another one."""
    if isinstance(state, Mapping) and isinstance(first, Mapping) and state.keys() == first.keys():
        for key, value in state.items():
            yield from parts_that_differ(value, first[key], (*place, key))
    elif digests(state) != first:
        yield [list(place), state]


def with_parts(state: Any, parts: Iterable[Part]) -> Any:
    """A nested state with these parts in it, itself unchanged."""
    for place, value in parts:
        state = _with(state, place, value)
    return state


def _with(state: Any, place: list[Any], value: Any) -> Any:
    if not place:
        return value
    return {**state, place[0]: _with(state[place[0]], place[1:], value)}

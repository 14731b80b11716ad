"""Nested tensors: dicts, tuples, named tuples, lists and dataclasses of them, as deep as one likes; None is no tensor.

Their order is one everywhere: that of fields and places, in a dict that of the sorted keys, however it was filled. So
a carry, a batch or the findings of a loss become a list of tensors and come back out of it, and the order in which
somebody wrote the keys means nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

SEQUENCES = (tuple, list)


def leaves(record: Any) -> list[Tensor]:
    """The tensors of a record in their order; a number is a tensor [] of Python's precision that nobody writes to."""
    found: list[Tensor] = []
    _gather(record, found)
    return found


def _gather(record: Any, found: list[Tensor]) -> None:
    if isinstance(record, Tensor):
        found.append(record)
    elif (parts := _parts(record)) is None:
        found.append(_number(record))
    else:
        for part in parts:
            _gather(part, found)


def rebuild(form: Any, tensors: Iterator[Tensor]) -> Any:
    """A record of the form of another one, with these tensors in the places of its own."""
    if isinstance(form, Tensor) or (parts := _parts(form)) is None:
        return next(tensors)
    return _like(form, [rebuild(part, tensors) for part in parts])


def map_leaves(function: Callable[[Tensor], Any], record: Any) -> Any:
    """The record with every tensor replaced by what a function makes of it."""
    if isinstance(record, Tensor) or (parts := _parts(record)) is None:
        return function(record)
    return _like(record, [map_leaves(function, part) for part in parts])


def name_leaves(record: Any, name: str = "carry") -> dict[str, Tensor]:
    """The tensors of a record by their places, as `carry.lstm.0`, in their order."""
    if isinstance(record, Tensor) or (parts := _parts(record)) is None:
        return {name: record}
    named = zip(_keys(record), parts, strict=True)
    return {at: leaf for key, part in named for at, leaf in name_leaves(part, f"{name}.{key}").items()}


def fit(form: Any, record: Any, place: str = "carry") -> Any:
    """A record in the form of another one: its order, sequence types, dtypes and devices.

    Args:
        form: as `agent.initial` gives it.
        record: as `act` gave it, or as it was stored, where tuples have become lists.
        place: what it is called in the error.

    Returns:
        The record, sharing what it can.

    Raises:
        ValueError: it is of another form; names the place, what is there and what is due.
    """
    if _outline(form) != _outline(record):
        raise ValueError(f"{place} is {_outline(record)} where the agent's `initial` gives {_outline(form)}")
    if isinstance(form, Tensor):
        return record.to(form.device, form.dtype)
    if (parts := _parts(form)) is None:  # a number
        return record
    each = zip(_keys(form), parts, _parts(record) or (), strict=True)
    return _like(form, [fit(part, own, f"{place}.{key}") for key, part, own in each])


def _parts(record: Any) -> Sequence[Any] | None:
    """Parts of a record one level below, in their order; None where it is a leaf."""
    if isinstance(record, SEQUENCES):
        return record
    if isinstance(record, dict):
        return [record[key] for key in sorted(record)]
    if dataclasses.is_dataclass(record):
        return [getattr(record, field.name) for field in dataclasses.fields(record)]
    return () if record is None else None


def _keys(record: Any) -> Sequence[Any]:
    """Names of the parts of a record, in their order."""
    if isinstance(record, SEQUENCES):
        return getattr(record, "_fields", range(len(record)))
    if isinstance(record, dict):
        return sorted(record)
    return [field.name for field in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else ()


def _like(form: Any, parts: list[Any]) -> Any:
    """A record of the type of another one, with these parts."""
    if isinstance(form, SEQUENCES):
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    if isinstance(form, dict):
        made = dict(zip(_keys(form), parts, strict=True))
        return {key: made[key] for key in form}
    return None if form is None else type(form)(**dict(zip(_keys(form), parts, strict=True)))


def _outline(part: Any) -> str:
    """One level of a record in words: equal for two of the same form."""
    if isinstance(part, dict):
        return f"a dict of {', '.join(sorted(map(repr, part)))}"
    if isinstance(part, SEQUENCES):
        return f"a sequence of {len(part)}"
    return f"a tensor {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"


@functools.lru_cache(maxsize=64, typed=True)
def _number(value: float) -> Tensor:
    """A float is one of 64 bits: as one of 32, 1 - ε would be another number than the one that Python computes."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)

"""Nested tensors (pytrees): dicts, tuples, named tuples, lists and dataclasses of tensors, of any depth.

The tensors are called leaves, and their order is fixed: fields and list elements in their order, dicts by sorted keys.
A carry, a batch or the outputs of a loss can therefore be flattened to a list of tensors and rebuilt from it. None has
no leaves.
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
    """Return a list of the tensors in a nested structure, dicts in the order of their sorted keys.

    A Python number is converted to a tensor []. It must not be modified, because equal numbers share one tensor.
    """
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
    """Create a nested structure with the types, lengths and keys of `form`, and with `tensors` as its leaves.

    `rebuild(form, iter(leaves(form)))` returns a copy of `form`.
    """
    if isinstance(form, Tensor) or (parts := _parts(form)) is None:
        return next(tensors)
    return _like(form, [rebuild(part, tensors) for part in parts])


def map_leaves(function: Callable[[Tensor], Any], record: Any) -> Any:
    """Apply a function to every tensor of a nested structure; return the results in the same structure."""
    if isinstance(record, Tensor) or (parts := _parts(record)) is None:
        return function(record)
    return _like(record, [map_leaves(function, part) for part in parts])


def name_leaves(record: Any, name: str = "carry") -> dict[str, Tensor]:
    """Return the tensors of a nested structure by their paths, for example `carry.lstm.0`, in order."""
    if isinstance(record, Tensor) or (parts := _parts(record)) is None:
        return {name: record}
    named = zip(_keys(record), parts, strict=True)
    return {at: leaf for key, part in named for at, leaf in name_leaves(part, f"{name}.{key}").items()}


def fit(form: Any, record: Any, place: str = "carry") -> Any:
    """Convert the tensors of a nested structure to the sequence types, dtypes and devices of another one.

    Args:
        form: nested structure with the wanted types, dtypes and devices, for example from `agent.initial`.
        record: nested structure to convert, for example from `agent.act` or from storage (tuples may have become
            lists). It must have the same dict keys, lengths and shapes.
        place: name of `record` in error messages.

    Returns:
        The converted structure; it shares tensors with `record` if possible.

    Raises:
        ValueError: If the structures differ. The message names the path and both structures.
    """
    if _outline(form) != _outline(record):
        raise ValueError(f"{place} is {_outline(record)}, but the agent's `initial` returns {_outline(form)}")
    if isinstance(form, Tensor):
        return record.to(form.device, form.dtype)
    if (parts := _parts(form)) is None:  # a number
        return record
    each = zip(_keys(form), parts, _parts(record) or (), strict=True)
    return _like(form, [fit(part, own, f"{place}.{key}") for key, part, own in each])


def _parts(record: Any) -> Sequence[Any] | None:
    """Return the children of a nested structure in order, or None if it is a leaf."""
    if isinstance(record, SEQUENCES):
        return record
    if isinstance(record, dict):
        return [record[key] for key in sorted(record)]
    if dataclasses.is_dataclass(record):
        return [getattr(record, field.name) for field in dataclasses.fields(record)]
    return () if record is None else None


def _keys(record: Any) -> Sequence[Any]:
    """Return the names of the children of a nested structure: dict keys, field names, or indices of a sequence."""
    if isinstance(record, SEQUENCES):
        return getattr(record, "_fields", range(len(record)))
    if isinstance(record, dict):
        return sorted(record)
    return [field.name for field in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else ()


def _like(form: Any, parts: list[Any]) -> Any:
    """Create a dict, sequence or dataclass of the same type as `form`, with `parts` as its children."""
    if isinstance(form, SEQUENCES):
        return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)
    if isinstance(form, dict):
        values = dict(zip(_keys(form), parts, strict=True))
        return {key: values[key] for key in form}
    return None if form is None else type(form)(**dict(zip(_keys(form), parts, strict=True)))


def _outline(part: Any) -> str:
    """Describe the top level of a nested structure as text, for comparisons and error messages.

    The text has the keys of a dict, the length of a sequence or the shape of a tensor, but not their children.
    """
    if isinstance(part, dict):
        return f"a dict of {', '.join(sorted(map(repr, part)))}"
    if isinstance(part, SEQUENCES):
        return f"a sequence of {len(part)}"
    return f"a tensor {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"


@functools.lru_cache(maxsize=64, typed=True)
def _number(value: float) -> Tensor:
    """Convert a number to a tensor; a float becomes float64, so that arithmetic has Python's precision."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)

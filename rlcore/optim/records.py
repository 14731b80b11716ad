"""Records of tensors, nested named tuples, dicts and tuples, as the flat list that machine code takes, and back."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def leaves(record: Any) -> Iterator[Tensor]:
    """The tensors of a record in the order of its parts, of a dict in that of its sorted keys.

    A number is a tensor [] that nobody writes to.
    """
    if isinstance(record, Tensor):
        yield record.contiguous()
    elif isinstance(record, (tuple, list)):
        for part in record:
            yield from leaves(part)
    elif isinstance(record, dict):
        for key in sorted(record):  # however it was filled: the same key is the same input of compiled code
            yield from leaves(record[key])
    else:
        yield _number(record)


def rebuilt(form: Any, tensors: Iterator[Tensor]) -> Any:
    """A record of the form of another one, with these tensors in the places of its own."""
    if isinstance(form, (tuple, list)):
        parts = [rebuilt(part, tensors) for part in form]
        return type(form)._make(parts) if hasattr(form, "_make") else type(form)(parts)  # pyright: ignore
    if isinstance(form, dict):
        parts = {key: rebuilt(form[key], tensors) for key in sorted(form)}
        return {key: parts[key] for key in form}
    return next(tensors)


def layout(tensors: Sequence[Tensor]) -> list[Any]:
    """Shapes and types, which a compiled function is made for."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


@functools.lru_cache(maxsize=64, typed=True)
def _number(value: float) -> Tensor:
    return torch.tensor(value)

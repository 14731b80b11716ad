"""An agent's carry: tensors [B, ...] in tuples, lists and dicts, as deep as it likes; () when it remembers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from rlcore.types import Carry


def mapped(function: Callable[[Tensor], Tensor], carry: Carry) -> Carry:
    """The carry with every tensor replaced by what a function makes of it."""
    if isinstance(carry, dict):
        return {key: mapped(function, value) for key, value in carry.items()}
    if isinstance(carry, tuple) and hasattr(carry, "_fields"):
        return type(carry)(*(mapped(function, value) for value in carry))
    if isinstance(carry, (tuple, list)):
        return type(carry)(mapped(function, value) for value in carry)
    return function(carry)


def tensors(carry: Carry) -> list[Tensor]:
    """Its tensors, in an order that the carry's form alone decides: what a checkpoint stores."""
    found: list[Tensor] = []
    mapped(lambda tensor: (found.append(tensor), tensor)[1], carry)
    return found


def restored(form: Carry, stored: list[Tensor]) -> Carry:
    """A carry of the form of a fresh one with what `tensors` gave; a ValueError where that was of another form."""
    left: Iterator[Any] = iter(stored)
    expected = tensors(form)
    if [t.shape for t in expected] != [t.shape for t in stored]:
        raise ValueError(
            f"a carry of {[list(t.shape) for t in stored]} where {[list(t.shape) for t in expected]} is due"
        )
    return mapped(lambda tensor: next(left).to(tensor.device), form)

"""An agent's carry: tensors [B, ...] in tuples, lists and dicts, as deep as it likes; () when it remembers nothing.

Its form (keys, lengths, shapes, types) is that of a fresh one, `agent.initial`. Parts of a dict are told by their keys:
the order in which `act` writes them means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rlcore.types import Carry


def mapped(function: Callable[[Tensor], Tensor], carry: Carry) -> Carry:
    """The carry with every tensor replaced by what a function makes of it."""
    if isinstance(carry, dict):
        return {key: mapped(function, value) for key, value in carry.items()}
    if isinstance(carry, (tuple, list)):
        return _of_type(carry, [mapped(function, value) for value in carry])
    return function(carry)


def named(carry: Carry, name: str = "carry") -> dict[str, Tensor]:
    """The tensors of a carry by their places, as `carry.lstm.0`, in the order in which they stand."""
    if not isinstance(carry, (dict, tuple, list)):
        return {name: carry}
    fields = getattr(carry, "_fields", range(len(carry)))
    parts = carry.items() if isinstance(carry, dict) else zip(fields, carry, strict=True)
    return {place: tensor for key, part in parts for place, tensor in named(part, f"{name}.{key}").items()}


def fitted(form: Carry, carry: Carry, place: str = "carry") -> Carry:
    """A carry in the form of a fresh one: its order, sequence types, dtypes and devices.

    Args:
        form: the fresh one.
        carry: what `act` gave, or what was stored, where tuples have become lists.
        place: what it is called in the error.

    Returns:
        The carry, sharing what it can.

    Raises:
        ValueError: it is of another form; names the place, what is there and what is due.
    """
    if _outline(form) != _outline(carry):
        raise ValueError(f"{place} is {_outline(carry)} where the agent's `initial` gives {_outline(form)}")
    if isinstance(form, dict):
        return {key: fitted(part, carry[key], f"{place}.{key}") for key, part in form.items()}
    if isinstance(form, (tuple, list)):
        parts = enumerate(zip(form, carry, strict=True))
        return _of_type(form, [fitted(part, given, f"{place}.{i}") for i, (part, given) in parts])
    return carry.to(form.device, form.dtype)


def _of_type(form: Any, parts: list[Any]) -> Carry:
    """A tuple, list or named tuple of these parts."""
    return type(form)(*parts) if hasattr(form, "_fields") else type(form)(parts)


def _outline(part: Any) -> str:
    """One level of a carry in words: equal for two of the same form."""
    if isinstance(part, dict):
        return f"a dict of {', '.join(sorted(map(repr, part)))}"
    if isinstance(part, (tuple, list)):
        return f"a sequence of {len(part)}"
    return f"a tensor {list(part.shape)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"

"""Nested state as two byte strings: JSON for the shape, safetensors for the numbers. Nothing is ever unpickled.

What is decoded may be anybody's: every way in which it can be wrong ends in one sentence, and the memory that decoding
takes is bounded by the size of what is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rlcore.errors import UserError
from rlcore.store.checkpoint.files import read_json
from rlcore.types import Chunk


def encode(state: Any, entry_of: Callable[[Chunk], Any] | None = None) -> tuple[bytes, bytes]:
    """Dicts (text or integer keys), lists, tensors, arrays and JSON values as two byte strings: the shape, the numbers.

    `entry_of` tells by which JSON value a chunk is found again; without it, all that it holds is in there.
    `TypeError`, naming its place, where something else is in there.
    """
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    shape = json.dumps(_split(state, "", tensors, entry_of)).encode()
    return shape, save(tensors)


def decode(
    shape: bytes,
    tensors: bytes,
    names: tuple[str, str] = ("the shape", "the tensors"),
    chunk: Callable[[Any], Chunk] | None = None,
) -> Any:
    """The state that `encode` was given; tuples come back as lists. `chunk` finds one by its entry.

    `UserError` where `encode` never wrote this: it calls the two files by their `names`.
    """
    numbers = _read_tensors(tensors, names[1])
    try:
        state = _join(read_json(shape, names[0]), numbers, chunk)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{names[0]} holds what no checkpoint holds") from None
    if numbers:
        raise UserError(f"{names[1]} holds tensors that {names[0]} does not name")
    return state


def _read_tensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:  # whatever the parser makes of it: the types differ by version and by fault
        raise UserError(f"{name} is not safetensors that can be read ({type(error).__name__})") from None


def _split(value: Any, name: str, tensors: dict[str, torch.Tensor], entry_of: Callable[[Chunk], Any] | None) -> Any:
    """JSON with {"tensor": name} or {"array": name} in place of tensors and arrays, which go to `tensors`."""
    if isinstance(value, Chunk):
        if entry_of is not None:
            return {"chunk": entry_of(value)}
        return {"held": _split(value.columns(), name, tensors, None)}
    if isinstance(value, torch.Tensor):
        return {"tensor": _put(value.detach().cpu().contiguous().clone(), name, tensors)}
    if isinstance(value, np.ndarray):
        return {"array": _put(torch.from_numpy(np.array(value, order="C")), name, tensors)}
    if isinstance(value, Mapping):
        items = [[_plain_key(k), _split(v, f"{name}/{k}", tensors, entry_of)] for k, v in value.items()]
        return {"items": items}
    if isinstance(value, (list, tuple)):
        return {"list": [_split(v, f"{name}/{i}", tensors, entry_of) for i, v in enumerate(value)]}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: a {type(value).__name__} cannot go into a checkpoint")


def _put(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> str:
    """Store a tensor and return the name it got: keys "a/b" and "a", "b" would both be called a/b."""
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _plain_key(key: Any) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise TypeError(f"a {type(key).__name__} cannot name a checkpoint entry")


def _join(shape: Any, tensors: dict[str, torch.Tensor], chunk: Callable[[Any], Chunk] | None) -> Any:
    """The state of a shape that `_split` made; takes the tensors out as it comes to them, so each belongs to one."""
    if isinstance(shape, list):
        raise TypeError("a list that is not marked as one")
    if not isinstance(shape, dict):
        return shape
    ((kind, content),) = shape.items()
    if kind == "tensor":
        return tensors.pop(content)
    if kind == "array":
        return tensors.pop(content).numpy()
    if kind == "chunk" and chunk is not None:
        return chunk(content)
    if kind == "held":
        columns = _join(content, tensors, None)
        return Chunk(lambda: columns)
    if not isinstance(content, list):
        raise TypeError(f"{kind} of a {type(content).__name__}")
    if kind == "list":
        return [_join(v, tensors, chunk) for v in content]
    if kind == "items":
        return {_plain_key(k): _join(v, tensors, chunk) for k, v in content}
    raise ValueError(kind)

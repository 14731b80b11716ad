"""Encoding of nested state as JSON for the structure and safetensors for the tensors, without pickle.

The data to decode is not trusted. Every invalid input causes an error message of one sentence, and the memory for
decoding is limited by the size of the input.
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
    """Encode a nested state as two byte strings: its structure and its tensors.

    Args:
        state: dicts with string or integer keys, lists, tensors, arrays, chunks and JSON values.
        entry_of: function that returns a JSON value that identifies a chunk. If it is not given, or returns None, the
            content of the chunk is included.

    Returns:
        JSON of the structure, and safetensors.

    Raises:
        TypeError: the state contains a value of another type; the message has its path.
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
    """Decode the outputs of `encode`; tuples become lists.

    Args:
        shape: JSON of the structure.
        tensors: safetensors.
        names: names of the two files, for error messages.
        chunk: returns the chunk of an entry.

    Returns:
        The state.

    Raises:
        UserError: `encode` cannot have written the data.
    """
    numbers = _read_tensors(tensors, names[1])
    try:
        state = _join(read_json(shape, names[0]), numbers, chunk)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{names[0]} is not the state of a checkpoint") from None
    if numbers:
        raise UserError(f"{names[1]} has tensors that {names[0]} does not refer to")
    return state


def _read_tensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:  # error types of the parser differ between versions
        raise UserError(f"{name} is not a valid safetensors file ({type(error).__name__})") from None


def _split(value: Any, name: str, tensors: dict[str, torch.Tensor], entry_of: Callable[[Chunk], Any] | None) -> Any:
    """Convert a state to JSON values, and add its tensors to `tensors`.

    In the result, {"tensor": name} or {"array": name} stands for a tensor or an array.
    """
    if isinstance(value, Chunk):
        if entry_of is not None and (entry := entry_of(value)) is not None:
            return {"chunk": entry}
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
    raise TypeError(f"{name}: a {type(value).__name__} cannot be stored in a checkpoint")


def _put(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> str:
    """Store a tensor under a unique name and return the name.

    A name that is taken gets a suffix: the key "a/b" and the nested keys "a", "b" would otherwise both be named a/b.
    """
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _plain_key(key: Any) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise TypeError(f"a {type(key).__name__} cannot be a key in a checkpoint")


def _join(shape: Any, tensors: dict[str, torch.Tensor], chunk: Callable[[Any], Chunk] | None) -> Any:
    """Return the state for a structure from `_split`; each used tensor is removed, so that none is used twice."""
    if isinstance(shape, list):
        raise TypeError("a list without the key 'list'")
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

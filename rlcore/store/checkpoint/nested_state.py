"""Encoding of a nested state without pickle: its structure as JSON, its tensors as safetensors.

Decoding is safe for input from untrusted sources: invalid input raises UserError with a short message, and the memory
used is limited by the size of the input.
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
        state: nested dicts (with string or integer keys), lists and tuples of tensors, arrays, chunks and JSON values.
        entry_of: function that returns a JSON value that identifies a chunk, so that only this value is encoded. If the
            function is missing or returns None, the content of the chunk is encoded.

    Returns:
        The structure as JSON, and the tensors and arrays as safetensors.

    Raises:
        TypeError: the state contains a value of another type; the message has its path in the state.
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
    """Decode a state that `encode` has encoded. Tuples in the state are returned as lists.

    Args:
        shape: structure of the state as JSON, the first output of `encode`.
        tensors: tensors as safetensors, the second output of `encode`.
        names: names of the files that contain `shape` and `tensors`, for error messages.
        chunk: function that returns the chunk for a value that `entry_of` returned.

    Returns:
        The state.

    Raises:
        UserError: the data is not a valid output of `encode`.
    """
    numbers = _read_tensors(tensors, names[1])
    try:
        state = _join(read_json(shape, names[0]), numbers, chunk)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(
            f"{names[0]} is not the state of a checkpoint; the file is damaged, use another checkpoint"
        ) from None
    if numbers:
        raise UserError(f"{names[1]} contains tensors that {names[0]} does not refer to")
    return state


def encode_message(state: Any, entry_of: Callable[[Chunk], Any] | None = None) -> torch.Tensor:
    """Encode a nested state as one vector of bytes for another process, [bytes] uint8; `entry_of` as in `encode`."""
    shape, tensors = encode(state, entry_of)
    return torch.frombuffer(bytearray(len(shape).to_bytes(8, "little") + shape + tensors), dtype=torch.uint8)


def decode_message(message: torch.Tensor, name: str, chunk: Callable[[Any], Chunk] | None = None) -> Any:
    """Decode a state that `encode_message` has encoded; `name` names the message in errors, `chunk` as in `decode`."""
    data = message.cpu().numpy().tobytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return decode(data[8:start], data[start:], (name, name), chunk)


def _read_tensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:  # error types of the parser differ between versions
        raise UserError(f"{name} is not a valid safetensors file ({type(error).__name__})") from None


def _split(value: Any, name: str, tensors: dict[str, torch.Tensor], entry_of: Callable[[Chunk], Any] | None) -> Any:
    """Convert a nested state to JSON values, and add its tensors and arrays to the dict `tensors`.

    Args:
        value: the state, or a part of it.
        name: path of this part in the complete state; "" for the complete state.
        tensors: name -> tensor; extended in place.
        entry_of: as in `encode`.

    Returns:
        The JSON value. It has {"tensor": name} in place of a tensor, and {"array": name} in place of an array.
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
    raise TypeError(
        f"{name}: a {type(value).__name__} cannot be stored in a checkpoint; return a tensor, a NumPy array, a JSON "
        "value, or a dict, list or tuple of these from state_dict()"
    )


def _put(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor to `tensors` under its path in the state, and return the name.

    If another tensor has this name, an apostrophe is appended. For example, the key "a/b" and the nested keys "a" and
    "b" both have the path a/b.
    """
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _plain_key(key: Any) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise TypeError(f"a {type(key).__name__} cannot be a key in a checkpoint; use str or int")


def _join(shape: Any, tensors: dict[str, torch.Tensor], chunk: Callable[[Any], Chunk] | None) -> Any:
    """Convert the result of `_split` back to a nested state.

    Args:
        shape: the JSON value.
        tensors: name -> tensor; each tensor that the state contains is removed from this dict.
        chunk: as in `decode`.

    Returns:
        The state.
    """
    if isinstance(shape, list):
        raise TypeError("a list must be encoded as {'list': [...]}")
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
        raise TypeError(f"the value of {kind!r} must be a list, not a {type(content).__name__}")
    if kind == "list":
        return [_join(v, tensors, chunk) for v in content]
    if kind == "items":
        return {_plain_key(k): _join(v, tensors, chunk) for k, v in content}
    raise ValueError(kind)

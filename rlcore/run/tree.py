"""Nested state as two byte strings: JSON for the shape, safetensors for the numbers. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def encode(state: Any) -> tuple[bytes, bytes]:
    """Nested state as bytes.

    Args:
        state: dicts (text or integer keys), lists, tensors, arrays and JSON values.

    Returns:
        JSON of the shape, safetensors of the numbers.

    Raises:
        TypeError: something else is in there; names its place.
    """
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    shape = json.dumps(_split(state, "", tensors)).encode()
    return shape, save(tensors)


def decode(shape: bytes, tensors: bytes) -> Any:
    """The state that `encode` was given; tuples come back as lists."""
    from safetensors.torch import load

    return _join(json.loads(shape), load(tensors))


def _split(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON with {"tensor": name} or {"array": name} in place of tensors and arrays, which go to `tensors`."""
    if isinstance(value, torch.Tensor):
        return {"tensor": _put(value.detach().cpu().contiguous().clone(), name, tensors)}
    if isinstance(value, np.ndarray):
        return {"array": _put(torch.from_numpy(np.array(value, order="C")), name, tensors)}
    if isinstance(value, Mapping):
        items = [[_plain_key(k), _split(v, f"{name}/{k}", tensors)] for k, v in value.items()]
        return {"items": items}
    if isinstance(value, (list, tuple)):
        return {"list": [_split(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]}
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


def _join(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "list":
        return [_join(v, tensors) for v in content]
    return {k: _join(v, tensors) for k, v in content}

"""Composite actions (a Dict or Tuple action space) of batched environments."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor


def nest_action(space: spaces.Space[Any], vector: Tensor) -> Any:
    """Convert action vectors to nested actions; `rlcore.envs.wrappers.VectorAction` does this for one environment.

    Args:
        space: action space of one copy.
        vector: [B, W] float64; the flattened parts in the order of the space (`ActionSpec.parts`).

    Returns:
        A dict or tuple with the structure of the space. Each part is a tensor [B, *shape] in the dtype of its space.
    """
    nested, _ = _nest(space, vector, 0)
    return nested


def _nest(space: spaces.Space[Any], vector: Tensor, begin: int) -> tuple[Any, int]:
    """Convert the columns from `begin` to an element of `space`; return it, and the index of the next column."""
    if isinstance(space, spaces.Dict):
        found = dict[str, Any]()
        for key, part in space.spaces.items():
            found[key], begin = _nest(part, vector, begin)
        return found, begin
    if isinstance(space, spaces.Tuple):
        parts = list[Any]()
        for part in space.spaces:
            element, begin = _nest(part, vector, begin)
            parts.append(element)
        return tuple(parts), begin
    shape = tuple(space.shape or ())
    end = begin + math.prod(shape)
    return vector[:, begin:end].reshape(-1, *shape).to(getattr(torch, str(space.dtype))), end

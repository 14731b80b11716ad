"""Masks of discrete actions: which choices the observation keys of kind "mask" allow, and one of these at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def allowed_choices(keys: Sequence[str], obs: Mapping[str, Any]) -> np.ndarray | None:
    """Choices that are allowed, [B, sum of nvec] bool, by `EnvSpec.mask_keys` and arrays [B, ...]; None without any."""
    if not keys:
        return None
    masks = [np.asarray(obs[key]) for key in keys]
    return np.concatenate([mask.reshape(len(mask), -1) != 0 for mask in masks], 1)


def draw_allowed(allowed: np.ndarray, nvec: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Uniformly random actions [B, A], counted from 0, among the allowed choices [B, sum of nvec].

    Where a sub-action has none, as in an observation that ends an episode, all of its choices count.
    """
    uniform, actions, begin = rng.random((len(allowed), len(nvec))), [], 0
    for column, count in enumerate(nvec):
        part = allowed[:, begin : begin + count]
        part = part | ~part.any(1, keepdims=True)
        rank = (uniform[:, column] * part.sum(1)).astype(np.int64)  # which of the allowed ones
        actions.append((part.cumsum(1) > rank[:, None]).argmax(1))
        begin += count
    return np.stack(actions, 1)

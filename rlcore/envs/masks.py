"""Masks of discrete actions, observation keys of kind "mask": one of the choices that they allow, at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlcore.spec import EnvSpec


def draw_allowed(spec: EnvSpec, obs: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Uniformly random actions [B, A], counted from 0, among the choices that masks allow.

    Args:
        spec: of the environment, which has `mask_keys`.
        obs: these keys' arrays [B, ...].
        rng: draws.

    Returns:
        [B, A] int64, one sub-action after the other: an allowed choice may depend on those before it.
    """
    masks, nvec = {key: np.asarray(obs[key]) for key in spec.mask_keys}, spec.action.nvec
    uniform = rng.random((len(masks[spec.mask_keys[0]]), len(nvec)))
    actions: list[np.ndarray] = []
    for column, count in enumerate(nvec):
        allowed = spec.allowed(masks, column, actions, np.concatenate)
        if allowed is None:
            allowed = np.ones((len(uniform), count), bool)
        rank = (uniform[:, column] * allowed.sum(1)).astype(np.int64)  # which of the allowed ones
        actions.append((allowed.cumsum(1) > rank[:, None]).argmax(1))
    return np.stack(actions, 1)

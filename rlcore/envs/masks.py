"""Random actions that respect action masks (observation keys of kind "mask")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlcore.spec import EnvSpec


def draw_allowed(spec: EnvSpec, obs: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Draw random actions, uniformly among the choices that the action masks allow.

    The sub-actions of an action are drawn one after another, because the allowed choices of a sub-action can depend on
    the sub-actions before it.

    Args:
        spec: spec of the environment, with `mask_keys`.
        obs: mask key -> array [B, ...].
        rng: random generator.

    Returns:
        Choices [B, A] int64, counted from 0; A is the number of sub-actions.
    """
    masks, nvec = {key: np.asarray(obs[key]) for key in spec.mask_keys}, spec.action.nvec
    uniform = rng.random((len(masks[spec.mask_keys[0]]), len(nvec)))
    actions: list[np.ndarray] = []
    for column, count in enumerate(nvec):
        allowed = spec.allowed(masks, column, actions, np.concatenate)
        if allowed is None:
            allowed = np.ones((len(uniform), count), bool)
        rank = (uniform[:, column] * allowed.sum(1)).astype(np.int64)  # index among the allowed choices
        actions.append((allowed.cumsum(1) > rank[:, None]).argmax(1))
    return np.stack(actions, 1)

"""Random actions that respect action masks (observation keys of kind "mask"), and masks that allow no action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from rlcore.errors import EnvironmentFault, UserError
from rlcore.spec import EnvSpec
from rlcore.types import Rows, TimeStep

NO_ACTION = (
    "the action masks allow no action although the episode continues; correct the environment so that each sub-action "
    "has an allowed choice, or set algo.action_masks=false"
)


def draw_allowed(spec: EnvSpec, obs: Mapping[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Draw random actions, uniformly among the choices that the action masks allow.

    The sub-actions of an action are drawn one after another, because the allowed choices of a sub-action can depend on
    the sub-actions before it.

    Args:
        spec: spec of the environment, with `mask_keys`.
        obs: mask key -> array [B, ...].
        rng: random generator.

    Returns:
        Choices [B, A] int64, counted from 0; A is the number of discrete sub-actions.
    """
    masks, nvec = {key: np.asarray(obs[key]) for key in spec.mask_keys}, spec.action.choices
    uniform = rng.random((len(masks[spec.mask_keys[0]]), len(nvec)))
    actions: list[np.ndarray] = []
    for column, count in enumerate(nvec):
        allowed = spec.allowed(masks, column, actions, np.concatenate)
        if allowed is None:
            allowed = np.ones((len(uniform), count), bool)
        rank = (uniform[:, column] * allowed.sum(1)).astype(np.int64)  # index among the allowed choices
        actions.append((allowed.cumsum(1) > rank[:, None]).argmax(1))
    return np.stack(actions, 1)


def refuse_without_action(spec: EnvSpec, time_step: TimeStep) -> None:
    """Raise EnvironmentFault if the action masks of an environment allow no action although its episode continues."""
    if spec.mask_keys and count_without_action(spec, time_step):
        raise EnvironmentFault(f"{spec.id}: {NO_ACTION}")


def refuse_first_masks(spec: EnvSpec, env: gymnasium.Env, seed: int) -> None:
    """Raise UserError if an action mask in the first observation of an episode has a wrong shape, or allows no action.

    Other errors of the environment are ignored, because make-env reports them.
    """
    try:
        obs, _ = env.reset(seed=seed)
        masks = {key: np.asarray(obs[key]) for key in spec.mask_keys}
    except Exception:
        return
    for key, mask in masks.items():
        if mask.shape != (shape := spec.obs[key].shape):
            raise UserError(
                f"{spec.id}: the action mask {key!r} has shape {mask.shape}, but must have {shape}, one entry for each "
                "choice; correct the environment, or set algo.action_masks=false"
            )
    nothing = spec.nothing_allowed({key: mask[None] for key, mask in masks.items()}, np.concatenate)
    if nothing is not None and nothing.any():
        raise UserError(f"{spec.id}: in the first state of an episode, {NO_ACTION}")


def count_without_action(spec: EnvSpec, time_step: TimeStep) -> int:
    """Return the number of environments whose action masks allow no action although their episode continues."""
    nothing = spec.nothing_allowed({key: _host(time_step.obs[key]) for key in spec.mask_keys}, np.concatenate)
    ended = _host(time_step.terminated) | _host(time_step.truncated)
    return 0 if nothing is None else int((nothing & ~ended).sum())


def _host(rows: Rows) -> np.ndarray:
    """Return an array, or a tensor of any device, as an array."""
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()

"""Choices that an environment's masks allow: a policy kept to them, and some of them at random."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.functional.distributions import Categoricals
from rlcore.spec import EnvSpec

Obs = Mapping[str, Tensor]


def choose(spec: EnvSpec, policy: Categoricals, obs: Obs, noise: Tensor | None) -> Tensor:
    """Take one sub-action after the other from what is allowed, each choice as likely beside the others as it was.

    Args:
        spec: of the environment, which has `mask_keys`.
        policy: over all choices, [B, ...].
        obs: these keys -> [B, ...].
        noise: standard exponential, [B, sum of nvec]; None: the most likely ones.

    Returns:
        [B, A] int64.
    """
    chosen: list[Tensor] = []
    drawn = [None] * len(policy.parts) if noise is None else noise.split(list(spec.action.nvec), -1)
    for part, (p, e) in enumerate(zip(policy.parts, drawn, strict=True)):
        allowed = spec.allowed(obs, part, chosen, torch.cat)
        lifted = p if e is None else p - e.log()
        # Only now: noise may be 0 in float32, and its logarithm is to lift none that is not allowed.
        chosen.append((lifted if allowed is None else lifted.masked_fill(~allowed, -torch.inf)).argmax(-1))
    return torch.stack(chosen, -1)


def disturb(spec: EnvSpec, action: Tensor, obs: Obs, share: Tensor, random: Tensor) -> Tensor:
    """Actions of which some are replaced by uniformly random ones, all among the allowed choices.

    Args:
        spec: of the environment, which has `mask_keys`.
        action: [B, A] int64.
        obs: these keys -> [B, ...].
        share: uniform noise [B, A] in [0, 1), which of the allowed choices.
        random: [B, A] bool, what is replaced; besides, what is no longer allowed after it.

    Returns:
        [B, A] int64.
    """
    chosen: list[Tensor] = []
    for part, count in enumerate(spec.action.nvec):
        allowed = spec.allowed(obs, part, chosen, torch.cat)
        if allowed is None:
            allowed = torch.ones(len(action), count, dtype=torch.bool, device=action.device)
        rank = (share[:, part] * allowed.sum(1)).long()
        other = (allowed.cumsum(1) > rank.unsqueeze(1)).int().argmax(1)
        was = action[:, part]
        kept = ~random[:, part] & allowed.gather(1, was.unsqueeze(1)).squeeze(1)
        chosen.append(torch.where(kept, was, other))
    return torch.stack(chosen, -1)

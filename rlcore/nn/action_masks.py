"""Selection of actions that the environment's action masks allow: from a policy, and for random exploration."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.functional.distributions import Categoricals
from rlcore.spec import EnvSpec

Obs = Mapping[str, Tensor]


def choose(spec: EnvSpec, policy: Categoricals, obs: Obs, noise: Tensor | None) -> Tensor:
    """Select sub-actions one after the other among the allowed choices.

    The probabilities of the allowed choices are renormalized.

    Args:
        spec: spec of an environment with `mask_keys`.
        policy: policy over all choices, [B, ...].
        obs: masks, mask key -> [B, ...].
        noise: standard exponential noise, [B, sum(nvec)]; None = the most likely choices.

    Returns:
        Actions, [B, A] int64.
    """
    chosen: list[Tensor] = []
    drawn = [None] * len(policy.parts) if noise is None else noise.split(list(spec.action.nvec), -1)
    for part, (p, e) in enumerate(zip(policy.parts, drawn, strict=True)):
        allowed = spec.allowed(obs, part, chosen, torch.cat)
        lifted = p if e is None else p - e.log()
        # Mask after adding the noise: it can be 0 in float32, and -log 0 = inf would select a forbidden choice.
        chosen.append((lifted if allowed is None else lifted.masked_fill(~allowed, -torch.inf)).argmax(-1))
    return torch.stack(chosen, -1)


def disturb(spec: EnvSpec, action: Tensor, obs: Obs, share: Tensor, random: Tensor) -> Tensor:
    """Replace some sub-actions by uniformly random ones among the allowed choices.

    Args:
        spec: spec of an environment with `mask_keys`.
        action: [B, A] int64.
        obs: masks, mask key -> [B, ...].
        share: [B, A]; uniform noise in [0, 1), which selects one of the allowed choices.
        random: [B, A] bool; sub-actions to replace. If a replacement makes a later sub-action forbidden, that one is
            replaced too.

    Returns:
        Actions, [B, A] int64.
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

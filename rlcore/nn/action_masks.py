"""Selection of actions that the environment's action masks allow: sampled from a policy, or uniformly at random.

An action of a MultiDiscrete space consists of several sub-actions. A mask marks the allowed choices of a sub-action; it
can depend on the choice of an earlier sub-action.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.functional.distributions import Categoricals
from rlcore.spec import EnvSpec

Obs = Mapping[str, Tensor]


def choose(spec: EnvSpec, policy: Categoricals, obs: Obs, noise: Tensor | None) -> Tensor:
    """Choose discrete actions from a policy; choices that an action mask forbids have probability 0.

    The sub-actions of an action (the columns of a MultiDiscrete space) are chosen one after the other, because a mask
    can depend on earlier sub-actions.

    Args:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        policy: distribution over the choices of each sub-action, without masks; batch size B.
        obs: observation key of a mask -> [B, ...]; nonzero if a choice is allowed.
        noise: standard exponential noise for sampling, [B, total number of choices]; None = take the most likely choice
            that is allowed.

    Returns:
        Actions, [B, A] int64, for A sub-actions.
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
    """Replace some sub-actions (columns of a discrete action) by random choices, for exploration.

    The new choice is uniformly distributed over the choices that the action masks allow.

    Args:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        action: [B, A] int64; actions with A sub-actions each.
        obs: observation key of a mask -> [B, ...]; nonzero if a choice is allowed.
        share: [B, A]; uniform noise in [0, 1), which selects one of the allowed choices.
        random: [B, A] bool; True for sub-actions to replace. If a replacement makes the choice of a later sub-action
            forbidden, the later sub-action is replaced too.

    Returns:
        Actions with the replacements, [B, A] int64.
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

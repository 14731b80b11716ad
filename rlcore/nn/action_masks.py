"""Policies whose actions the environment's action masks allow, and random allowed actions for exploration.

An action of a MultiDiscrete space consists of several sub-actions. A mask marks the allowed choices of a sub-action; it
can depend on the choice of an earlier sub-action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.distributions import MaskedCategoricals, Policy, mask_logits
from rlcore.spec import EnvSpec

Obs = Mapping[str, Tensor]


class Masks(NamedTuple):
    """Action masks of N observations.

    Attributes:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        obs: observation key of a mask -> [N, ...]; nonzero if a choice is allowed.
    """

    spec: EnvSpec
    obs: Obs


def masked_policy(spec: EnvSpec, logits: Tensor, obs: Obs) -> Policy:
    """Return a policy over discrete actions that chooses only actions that the action masks allow.

    Args:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        logits: [N, sum(nvec)]; unnormalized log-probabilities of all choices of all sub-actions.
        obs: observation key of a mask -> [N, ...]; nonzero if a choice is allowed.

    Returns:
        The distribution over actions [N, A] for A sub-actions.
    """
    if any(spec.conditions(part) for part in range(spec.action.size)):
        return ConditionalCategoricals(spec, logits, obs)
    return MaskedCategoricals(logits, spec.action.nvec, allowed_choices(spec, logits, obs))


def allowed_choices(spec: EnvSpec, parameters: Tensor, obs: Obs) -> Tensor:
    """Apply masks that do not depend on a choice: return [N, all choices of all discrete sub-actions] bool.

    Args:
        spec: spec of an environment that returns action masks.
        parameters: [N, ...]; parameters of the policy, which determine N and the device.
        obs: observation key of a mask -> [N, ...]; nonzero if a choice is allowed.

    Returns:
        True if a choice is allowed.
    """
    masks = [spec.allowed(obs, part, (), torch.cat) for part in range(len(spec.action.choices))]
    free = [parameters.new_ones((parameters.shape[0], count), dtype=torch.bool) for count in spec.action.choices]
    allowed = [every if mask is None else mask for mask, every in zip(masks, free, strict=True)]
    return allowed[0] if len(allowed) == 1 else torch.cat(allowed, -1)


class ConditionalCategoricals:
    """Categorical distributions of sub-actions, if a mask of a sub-action depends on the choice of an earlier one.

    The sub-actions are then not independent: π(a) = Π πᵢ(aᵢ | a₀, …, aᵢ₋₁).

    Args:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        logits: [N, sum(nvec)]; unnormalized log-probabilities of all choices of all sub-actions.
        obs: observation key of a mask -> [N, ...]; nonzero if a choice is allowed.
    """

    def __init__(self, spec: EnvSpec, logits: Tensor, obs: Obs) -> None:
        self.spec, self.obs, self.parts = spec, obs, logits.split(spec.action.nvec, -1)

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] int64 from standard exponential noise [N, sum(nvec)]."""
        return choose(self.spec, self.parts, self.obs, noise)

    def mode(self) -> Tensor:
        """Return the most likely choice of each sub-action, given those of the earlier ones, [N, A] int64."""
        return choose(self.spec, self.parts, self.obs, None)

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-probability [N] of actions [N, A] int64."""
        chosen = action.unbind(-1)
        each = [self._part(part, chosen).gather(-1, taken.unsqueeze(-1)) for part, taken in enumerate(chosen)]
        return torch.cat(each, -1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats: the sum of the sub-actions' expected entropies, given the earlier choices."""
        found = list[Tensor]()
        for part in range(len(self.parts)):
            for probability, chosen in self._cases(self.spec.conditions(part)):
                p = self._part(part, chosen)
                found.append(-(p.exp() * p).sum(-1) * probability)
        return torch.stack(found, -1).sum(-1)

    def _part(self, part: int, chosen: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """Return the log-probabilities [N, choices] of a sub-action, given the choices of earlier sub-actions."""
        allowed = self.spec.allowed(self.obs, part, chosen, torch.cat)
        return F.log_softmax(self.parts[part] if allowed is None else mask_logits(self.parts[part], allowed), -1)

    def _cases(self, needed: frozenset[int]) -> list[tuple[Tensor, dict[int, Tensor]]]:
        """Enumerate the choices of the sub-actions `needed`, and of those on which their masks depend.

        Choices that have the same effect on all masks are one case. Return the probability [N] of each case, and
        sub-action -> one of the choices of the case, [N].
        """
        if not needed:
            return [(torch.ones_like(self.parts[0][:, 0]), {})]
        last, found = max(needed), list[tuple[Tensor, dict[int, Tensor]]]()
        for probability, chosen in self._cases(needed - {last} | self.spec.conditions(last)):
            p = self._part(last, chosen).exp()
            for group in self.spec.alike(last):
                example = torch.full_like(p[:, 0], group[0], dtype=torch.int64)
                found.append((probability * p[:, list(group)].sum(-1), chosen | {last: example}))
        return found


def choose(spec: EnvSpec, logits: Sequence[Tensor], obs: Obs, noise: Tensor | None) -> Tensor:
    """Choose discrete actions from a policy; choices that an action mask forbids have probability 0.

    The sub-actions of an action (the columns of a MultiDiscrete space) are chosen one after the other, because a mask
    can depend on earlier sub-actions.

    Args:
        spec: spec of an environment that returns action masks; they are the observation keys `spec.mask_keys`.
        logits: unnormalized log-probabilities of the choices of each sub-action, without masks, [B, choices] each.
        obs: observation key of a mask -> [B, ...]; nonzero if a choice is allowed.
        noise: standard exponential noise for sampling, [B, total number of choices]; None = take the most likely choice
            that is allowed.

    Returns:
        Actions, [B, A] int64, for A sub-actions.
    """
    chosen: list[Tensor] = []
    drawn = [None] * len(logits) if noise is None else noise.split(list(spec.action.nvec), -1)
    for part, (p, e) in enumerate(zip(logits, drawn, strict=True)):
        allowed = spec.allowed(obs, part, chosen, torch.cat)
        lifted = p if e is None else p - e.log()
        # Mask after adding the noise: it can be 0 in float32, and -log 0 = inf would select a forbidden choice.
        chosen.append((lifted if allowed is None else mask_logits(lifted, allowed)).argmax(-1))
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

"""Choices that an environment allows, of discrete actions: a policy kept to them, and one of them at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlcore.functional.distributions import Categoricals


def find_allowed(obs: Mapping[str, Tensor], keys: Sequence[str], nvec: Sequence[int]) -> Tensor:
    """Which choices may be taken, [B, sum of nvec] bool.

    Args:
        obs: key -> [B, ...], where a mask is not 0 where the choice is allowed.
        keys: of the masks, one behind the other: `rlcore.spec.EnvSpec.mask_keys`.
        nvec: choices of each sub-action. Where a mask leaves one none, as in an observation that ends an episode, all
            of its choices count.

    Returns:
        True where it may.
    """
    masks = torch.cat([obs[key].flatten(1) != 0 for key in keys], 1)
    parts = [part | ~part.any(1, keepdim=True) for part in masks.split(list(nvec), 1)]
    return torch.cat(parts, 1)


class Restricted(Categoricals):
    """A policy over the allowed choices alone, each as likely beside the others as it was.

    Args:
        policy: over all choices.
        allowed: [..., sum of nvec] bool, at least one of every sub-action.
    """

    def __init__(self, policy: Categoricals, allowed: Tensor) -> None:
        logits = torch.cat(policy.parts, -1).masked_fill(~allowed, -torch.inf)
        super().__init__(logits, tuple(part.shape[-1] for part in policy.parts))

    def sample(self, noise: Tensor) -> Tensor:
        """As of all choices; noise may be 0 in float32, and its logarithm is to lift none that is not allowed."""
        parts = noise.split([p.shape[-1] for p in self.parts], -1)
        lifted = [torch.where(p > -torch.inf, p - e.log(), p) for p, e in zip(self.parts, parts, strict=True)]
        return torch.stack([part.argmax(-1) for part in lifted], -1)


def pick(share: Tensor, allowed: Tensor, nvec: Sequence[int]) -> Tensor:
    """Uniform choices [B, A] int64 among the allowed ones [B, sum of nvec], from uniform noise [B, A] in [0, 1)."""
    parts = allowed.split(list(nvec), 1)
    ranks = [(share[:, i] * part.sum(1)).long() for i, part in enumerate(parts)]  # which of the allowed ones
    found = [(part.cumsum(1) > rank.unsqueeze(1)).int().argmax(1) for part, rank in zip(parts, ranks, strict=True)]
    return torch.stack(found, 1)

"""What an on-policy loss sees of a rollout: its steps without order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.spec import ActionSpec


class Samples(NamedTuple):
    """N steps without order: features [N, F], action [N, A], the rest [N]; weight 0 where a row only resets."""

    features: Tensor
    action: Tensor
    old_logprob: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor

    @staticmethod
    def example(count: int, features: int, action: ActionSpec) -> Samples:
        """N samples as any rollout has them, whose numbers only keep a loss from being trivial."""
        spread = torch.linspace(-1, 1, count)
        kind = torch.float32 if action.continuous else torch.int64
        columns = spread.unsqueeze(-1).repeat(1, features)
        actions = torch.zeros(count, action.size, dtype=kind)
        return Samples(columns, actions, -1 + spread / 9, spread.cos(), spread.flip(0), spread, torch.ones(count))

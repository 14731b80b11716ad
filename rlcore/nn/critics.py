"""Critics of observation and action, several side by side."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import MLPConfig


class Critics(nn.Module):
    """N perceptrons Q(s, a), each with weights of its own.

    Args:
        inputs: features of an observation.
        actions: A.
        config: hidden layers of each.
        count: N.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, inputs: int, actions: int, config: MLPConfig, count: int, rng: torch.Generator) -> None:
        super().__init__()
        self.members = nn.ModuleList([MLP(inputs + actions, config, rng, outputs=1) for _ in range(count)])

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """[B, F] and [B, A] -> [N, B]."""
        together = torch.cat([features, action], -1)
        return torch.stack([member(together).squeeze(-1) for member in self.members])

"""Ensemble of one-step models, whose disagreement is the intrinsic reward (arXiv:2005.05960, eq. 3-4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.world_keys import MLPSpec


class Ensemble(nn.Module):
    """K networks that predict the same target from a model state and an action; each has its own initial weights.

    Args:
        count: K; number of networks.
        inputs: size of the features of a model state plus the size of an action as a vector.
        outputs: D; size of the target.
        layers: settings of the hidden layers.
        rng: CPU generator for the initialization.
        make_mlp: function that creates a network, with the arguments of `Dense`.
    """

    def __init__(
        self,
        count: int,
        inputs: int,
        outputs: int,
        layers: MLPSpec,
        rng: torch.Generator,
        make_mlp: Callable[..., Dense] = Dense,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(make_mlp(inputs, layers, rng, outputs, layers.form.scale) for _ in range(count))

    def forward(self, feat: Tensor, action: Tensor) -> Tensor:
        """Predict the targets [K, ..., D] of the next states, from features [..., F] and actions [..., A']."""
        inputs = torch.cat([feat, action], -1)
        return torch.stack([member(inputs) for member in self.members])


def disagreement(predictions: Tensor) -> Tensor:
    """Compute the disagreement of K models, [...], from their predictions [K, ..., D] (arXiv:2005.05960, eq. 4).

    D(h, a) = 1 / (K - 1) Σₖ (μₖ - μ̄)², averaged over the D numbers of a prediction.
    """
    return predictions.var(0).mean(-1)

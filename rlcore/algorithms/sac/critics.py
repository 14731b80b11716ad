"""Ensemble of Q-networks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Drawn, Noise
from rlcore.functional.two_hot import TwoHot
from rlcore.nn.network import Network
from rlcore.nn.network_keys import NetworkConfig
from rlcore.types import Ranks


class Critics(nn.Module):
    """Ensemble of N Q-networks on a shared encoder.

    Args:
        encoder: shared encoder, trained on the critic loss; a module with an `output_size`.
        actions: A; size of an action.
        config: hidden layers of each network.
        count: N; number of networks.
        rng: CPU generator for the initialization.
        bins: K; each network predicts a distribution over K bins; if K = 1, it predicts a scalar.
    """

    def __init__(
        self, encoder: Any, actions: int, config: NetworkConfig, count: int, rng: torch.Generator, bins: int = 1
    ) -> None:
        super().__init__()
        self.encoder, inputs = encoder, encoder.output_size + actions
        self.units, self.dropout = config.hidden_size, config.dropout
        self.members = nn.ModuleList([Network(inputs, config, rng, outputs=bins) for _ in range(count)])
        self.form = TwoHot(bins) if bins > 1 else None

    def forward(
        self, obs: dict[str, Tensor], action: Tensor, masks: Iterable[Tensor] = (), ranks: Ranks | None = None
    ) -> Tensor:
        """Return the estimated values [N, B] of actions [B, A] in [-1, 1] at observations key -> [B, ...].

        The other arguments are those of `outputs`.
        """
        return self.read(self.outputs(obs, action, masks, ranks))

    def outputs(
        self, obs: dict[str, Tensor], action: Tensor, masks: Iterable[Tensor] = (), ranks: Ranks | None = None
    ) -> Tensor:
        """Return the outputs of the networks, [N, B, K].

        `masks` are the dropout masks [layers, B, units], drawn by `noise`. `ranks` is passed to each `Network`, for
        batch normalization.
        """
        together, drawn = torch.cat([self.encoder(obs), action], -1), Drawn(iter(masks))
        return torch.stack([member(together, drawn, ranks) for member in self.members])

    def read(self, outputs: Tensor) -> Tensor:
        """Convert network outputs [N, B, K] to estimated values [N, B]."""
        return outputs.squeeze(-1) if self.form is None else self.form.mean(outputs)

    def noise(self, batch: int, rng: Noise) -> Tensor | tuple[()]:
        """Draw dropout masks of 0 and 1, [layers, B, units], for all critics; () if they have no dropout."""
        count = sum(member.dropouts for member in self.members)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return rng.bernoulli(1 - self.dropout, count, batch, self.units) if count else ()

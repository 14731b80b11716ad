"""Ensemble of Q-networks, the critics of soft actor-critic algorithms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Drawn, Noise
from rlcore.functional.scalars import TwoHot
from rlcore.nn.network import Network
from rlcore.nn.network_keys import NetworkConfig
from rlcore.types import Ranks


class ObsEncoder(Protocol):
    """Interface of a module that encodes observations to features; actor and critics have one each.

    Attributes:
        vectors: keys of vector observations that the module reads.
        images: keys of image observations that the module reads.
        output_size: F; number of features.
    """

    vectors: tuple[str, ...]
    images: tuple[str, ...]
    output_size: int

    def __call__(self, obs: dict[str, Tensor]) -> Tensor:
        """Encode observations, key -> [B, ...], to features [B, F]."""
        ...


class Critics(nn.Module):
    """Ensemble of N Q-networks with a shared observation encoder.

    Args:
        encoder: module that maps observations to features; its attribute `output_size` is their number. It is trained
            with the critic loss.
        actions: A; number of action dimensions.
        config: hidden layers of each network.
        count: N; number of networks.
        rng: CPU generator for the initialization.
        bins: K; number of outputs of each network. If K = 1, the output is the value. If K > 1, the outputs are the
            logits of a distribution over K bins of values.
    """

    def __init__(
        self, encoder: ObsEncoder, actions: int, config: NetworkConfig, count: int, rng: torch.Generator, bins: int = 1
    ) -> None:
        super().__init__()
        self.encoder, inputs = encoder, encoder.output_size + actions
        self.units, self.dropout = config.hidden_size, config.dropout
        self.members = nn.ModuleList([Network(inputs, config, rng, outputs=bins) for _ in range(count)])
        self.form = TwoHot(bins) if bins > 1 else None

    def forward(
        self, obs: dict[str, Tensor], action: Tensor, masks: Iterable[Tensor] = (), ranks: Ranks | None = None
    ) -> Tensor:
        """Return the values that the N networks predict for B observations and actions.

        Args:
            obs: key -> observations [B, ...].
            action: [B, A] in [-1, 1].
            masks: dropout masks [layers, B, units], drawn by `noise`; () if the networks have no dropout.
            ranks: ranks over which batch normalization computes the statistics of the batch; None = use the running
                statistics.

        Returns:
            Values, [N, B].
        """
        return self.read(self.outputs(obs, action, masks, ranks))

    def outputs(
        self, obs: dict[str, Tensor], action: Tensor, masks: Iterable[Tensor] = (), ranks: Ranks | None = None
    ) -> Tensor:
        """Return the outputs of the N networks, before they are converted to values.

        Args:
            obs: key -> observations [B, ...].
            action: [B, A] in [-1, 1].
            masks: dropout masks [layers, B, units], drawn by `noise`; () if the networks have no dropout.
            ranks: ranks over which batch normalization computes the statistics of the batch; None = use the running
                statistics.

        Returns:
            Outputs, [N, B, K].
        """
        together, drawn = torch.cat([self.encoder(obs), action], -1), Drawn(iter(masks))
        return torch.stack([member(together, drawn, ranks) for member in self.members])

    def read(self, outputs: Tensor) -> Tensor:
        """Convert network outputs [N, B, K] to values [N, B]: the scalar output, or the mean of the distribution."""
        return outputs.squeeze(-1) if self.form is None else self.form.mean(outputs)

    def noise(self, batch: int, rng: Noise) -> Tensor | tuple[()]:
        """Draw the dropout masks of all networks, [layers, B, units] of 0 and 1.

        `layers` is the number of dropout layers of all networks together. Return () if the networks have no dropout.
        """
        count = sum(member.dropouts for member in self.members)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return rng.bernoulli(1 - self.dropout, count, batch, self.units) if count else ()

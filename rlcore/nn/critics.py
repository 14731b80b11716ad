"""Critics of observation and action, several side by side."""

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
    """N estimates Q(s, a), each by a network with weights of its own, of what one encoder makes of the observation.

    Args:
        encoder: theirs, which their loss trains: a module with an `output_size`.
        actions: A.
        config: hidden layers of each.
        count: N.
        rng: CPU generator for the initialisation.
        bins: K: each network tells its estimate by a distribution over K bins; 1 = as a number.
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
        """Observations key -> [B, ...] and actions [B, A] in ±1 -> estimates [N, B]; the rest as `outputs` has it."""
        return self.read(self.outputs(obs, action, masks, ranks))

    def outputs(
        self, obs: dict[str, Tensor], action: Tensor, masks: Iterable[Tensor] = (), ranks: Ranks | None = None
    ) -> Tensor:
        """[N, B, K]: what the networks give.

        `masks` [layers, B, units] of `noise` are what dropout goes by; `ranks` as a `Network` takes them.
        """
        together, drawn = torch.cat([self.encoder(obs), action], -1), Drawn(iter(masks))
        return torch.stack([member(together, drawn, ranks) for member in self.members])

    def read(self, outputs: Tensor) -> Tensor:
        """The estimates that outputs stand for. [N, B, K] -> [N, B]."""
        return outputs.squeeze(-1) if self.form is None else self.form.mean(outputs)

    def noise(self, batch: int, rng: Noise) -> Tensor | tuple[()]:
        """1 where the critics' dropout keeps what it is given, else 0, [layers, B, units]; () where they have none."""
        count = sum(member.dropouts for member in self.members)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return rng.bernoulli(1 - self.dropout, count, batch, self.units) if count else ()

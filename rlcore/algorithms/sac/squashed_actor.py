"""Agent of soft actor-critics: a normal policy squashed by tanh."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.network import Network
from rlcore.nn.network_keys import ActorConfig
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import EnvSpec
from rlcore.types import Ranks


class SquashedActor(nn.Module):
    """Actor with encoder, network and a squashed normal policy; actions are stored before the tanh.

    Args:
        config: config of a soft actor-critic: observation keys, normalization, and the layers of `actor`.
        spec: spec of the environment.
        distribution: `distribution.type`; ignored, because only the squashed normal is supported.
        rng: CPU generator for the initialization.
        encoder: observation encoder; None = create one from the config.
    """

    def __init__(
        self, config: Any, spec: EnvSpec, distribution: str, rng: torch.Generator, encoder: Any = None
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(config, spec, rng) if encoder is None else encoder
        self.keys = (*self.encoder.vectors, *self.encoder.images)
        self.history, self.log_std_min = spec.windows(self.keys), config.actor.log_std_min
        self.actor = Network(self.encoder.output_size, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, "tanh_normal", ActorConfig(), rng)

    def forward(self, obs: dict[str, Tensor], ranks: Ranks | None = None) -> TanhNormal:
        """Return the policy, a distribution over actions [N, A], at observations key -> [N, ...].

        `ranks` is passed to `Network`, for batch normalization.
        """
        mean, log_std = self.head(self.actor(self.encoder(obs), ranks=ranks)).chunk(2, -1)
        return TanhNormal(mean, self.limit(log_std))

    def limit(self, log_std: Tensor) -> Tensor:
        """Raise log stds [N, A] below `log_std_min` to this value."""
        return log_std.clamp(min=self.log_std_min)

    def initial(self, batch_size: int) -> tuple[()]:
        """Return an empty carry, because this agent has no recurrent state."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """Return the empty carry, actions [B, A], and the extra `logprob` [B]; `obs` maps keys to [B, ...]."""
        policy = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng))
        return (), action, {"logprob": policy.logprob(action)}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, A] to the environment's actions [B, *shape], within its bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.head.from_env(action)


def make_encoder(config: Any, spec: EnvSpec, rng: torch.Generator) -> MultiEncoder:
    """Create an observation encoder from the config.

    The actor has one encoder, trained on the policy loss; the critics share another one, trained on the critic loss.
    """
    clip = config.obs_clip if config.normalize_obs else None
    return MultiEncoder(spec, config.mlp_keys.encoder, config.cnn_keys.encoder, config.encoder, rng, clip)

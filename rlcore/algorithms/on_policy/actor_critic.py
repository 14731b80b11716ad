"""Agent of on-policy actor-critics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.mlp import MLP
from rlcore.nn.network_keys import ActorConfig, EncoderConfig, KeysConfig, MLPConfig
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import EnvSpec, Window
from rlcore.types import Ranks


@dataclass(frozen=True)  # configs are frozen; without this, the protocol would require writable attributes
class ActorCriticKeys(Protocol):
    """Config keys that this agent reads: observation keys, normalization, layers."""

    mlp_keys: KeysConfig
    cnn_keys: KeysConfig
    normalize_obs: bool
    obs_clip: float
    encoder: EncoderConfig
    actor: ActorConfig
    critic: MLPConfig


class ActorCritic(nn.Module):
    """Actor-critic with a shared encoder, separate MLPs, and a policy head for the action space.

    Args:
        config: config of the algorithm.
        spec: spec of the environment.
        distribution: `distribution.type`.
        rng: CPU generator for the initialization.
        history: windows of frames of observation keys, and of past actions, in addition to the windows of `spec`.
    """

    def __init__(
        self,
        config: ActorCriticKeys,
        spec: EnvSpec,
        distribution: str,
        rng: torch.Generator,
        history: Mapping[str, Window] | None = None,
    ) -> None:
        super().__init__()
        vectors, images = config.mlp_keys.encoder, config.cnn_keys.encoder
        self.keys = (*vectors, *images)
        self.history = spec.windows(self.keys) | dict(history or {})
        clip = config.obs_clip if config.normalize_obs else None
        self.encoder = MultiEncoder(spec, vectors, images, config.encoder, rng, clip, self.history)
        features = self.core(config, spec, rng)
        self.actor = MLP(features, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.critic = MLP(features, config.critic, rng, outputs=1)

    def core(self, config: Any, spec: EnvSpec, rng: torch.Generator) -> int:
        """Build the layers between the encoder and the heads (none here); return their number of output features."""
        return self.encoder.output_size

    def observe(self, obs: dict[str, Tensor], ranks: Ranks) -> None:
        """Update the normalizer of observations, if there is one, with the observations of all ranks.

        `obs` maps keys to raw observations [T, B, *shape] without frame stacks. The normalizer changes only here, so
        collection and losses use the same statistics.
        """
        self.encoder.observe(obs, ranks)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Policy, Tensor]:
        """Return the policy, a distribution over actions [N, A], and the values [N].

        `obs` maps keys to observations [N, ...]; keys with a window of frames have shape [N, frames, ...].
        """
        encoded = self.encoder(obs)
        return self.head.policy(self.head(self.actor(encoded))), self.critic(encoded).squeeze(-1)

    def initial(self, batch_size: int) -> tuple[()]:
        """Return an empty carry, because this agent has no recurrent state."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """Return the empty carry, actions [B, A], and extras: `logprob` [B] and `value` [B].

        `obs` maps keys to observations [B, ...].
        """
        policy, value = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return (), action, {"logprob": policy.logprob(action), "value": value}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, A] to the environment's actions [B, *shape], within its bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.head.from_env(action)

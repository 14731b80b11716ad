"""The agent of on-policy actor-critics."""

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


@dataclass(frozen=True)  # as configs are: a protocol's attributes would have to be writable
class ActorCriticKeys(Protocol):
    """Keys of an algorithm that this agent reads: its observations, their normalisation, the layers."""

    mlp_keys: KeysConfig
    cnn_keys: KeysConfig
    normalize_obs: bool
    obs_clip: float
    encoder: EncoderConfig
    actor: ActorConfig
    critic: MLPConfig


class ActorCritic(nn.Module):
    """Encoder shared by actor and critic; their own perceptrons; a policy head for the action space.

    Args:
        config: of the algorithm.
        spec: of the environment.
        distribution: `distribution.type`.
        rng: CPU generator for the initialisation.
        history: windows beside those that `spec` asks for, of observation keys and of past actions.
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
        self.register_load_state_dict_pre_hook(_move_normalizer)
        features = self.core(config, spec, rng)
        self.actor = MLP(features, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.critic = MLP(features, config.critic, rng, outputs=1)

    def core(self, config: Any, spec: EnvSpec, rng: torch.Generator) -> int:
        """Make what lies between the encoder and actor and critic: nothing. Returns the features that these read."""
        return self.encoder.output_size

    def observe(self, obs: dict[str, Tensor], ranks: Ranks) -> None:
        """Let observations key -> [T, B, *shape], and those of the other ranks, count in the normaliser, if any.

        They are as the environment gave them, without frames. It changes here and nowhere else, so that a rollout and
        the losses on it see the same numbers.
        """
        self.encoder.observe(obs, ranks)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Policy, Tensor]:
        """Observations key -> [N, ...], with a window [N, frames, ...] -> the policy over [N, A], and values [N]."""
        encoded = self.encoder(obs)
        return self.head.policy(self.head(self.actor(encoded))), self.critic(encoded).squeeze(-1)

    def initial(self, batch_size: int) -> tuple[()]:
        """No carry: this agent remembers nothing."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B] and the `value` [B] of the observation."""
        policy, value = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return (), action, {"logprob": policy.logprob(action), "value": value}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.head.from_env(action)


def _move_normalizer(agent: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Read a state of earlier versions, in which the agent's normaliser did not belong to its encoder."""
    if f"{prefix}normalizer._extra_state" in state:
        state[f"{prefix}encoder.normalizer._extra_state"] = state.pop(f"{prefix}normalizer._extra_state")

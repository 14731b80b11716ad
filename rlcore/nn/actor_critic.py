"""The agent of on-policy actor-critics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.nn.encoder import Normalizer, VectorEncoder, flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import EnvSpec
from rlcore.types import Ranks

if TYPE_CHECKING:
    from rlcore.algorithms.on_policy import OnPolicyConfig


class ActorCritic(nn.Module):
    """Encoder shared by actor and critic; their own perceptrons; a policy head for the action space.

    Args:
        config: keys of the observations, their normalisation, and the layers.
        spec: of the environment.
        distribution: `distribution.type`.
        rng: CPU generator for the initialisation.
    """

    def __init__(self, config: OnPolicyConfig, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.spec, self.keys = spec, tuple(config.mlp_keys.encoder)
        self.size = sum(spec.obs[key].size for key in self.keys)
        self.normalizer = Normalizer(self.size, config.obs_clip) if config.normalize_obs else nn.Identity()
        self.encoder = VectorEncoder(self.size, config.encoder, rng)
        self.actor = MLP(self.encoder.output_size, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.critic = MLP(self.encoder.output_size, config.critic, rng, outputs=1)

    def observe(self, obs: dict[str, Tensor], ranks: Ranks) -> None:
        """Let observations key -> [T, B, ...], and those of the other ranks, count in the normaliser, if there is one.

        It changes here and nowhere else, so that a rollout and the losses on it see the same numbers.
        """
        if isinstance(self.normalizer, Normalizer):
            self.normalizer.update(flatten(obs, self.spec, self.keys, 2).flatten(0, 1), ranks.sum)

    def features(self, obs: dict[str, Tensor]) -> Tensor:
        """Normalised flat observations [N, F] float32 of obs key -> [N, ...]."""
        return self.normalizer(flatten(obs, self.spec, self.keys, 1))

    def forward(self, obs: dict[str, Tensor]) -> tuple[Policy, Tensor]:
        """Observations key -> [N, ...], as the environment gave them -> the policy over [N, A], and values [N]."""
        encoded = self.encoder(self.features(obs))
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

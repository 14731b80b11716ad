"""The agent of soft actor-critics: a normal squashed by tanh."""

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
    """An encoder, a network and the head of a squashed normal; an action is kept before the tanh.

    Args:
        config: of soft actor-critics: keys of the observations, their normalisation, and the layers of `actor`.
        spec: of the environment.
        distribution: `distribution.type`, of which there is one here.
        rng: CPU generator for the initialisation.
        encoder: of the observations; None = one of its own of these keys.
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
        """Observations key -> [N, ...] -> the distribution of actions [N, A]; `ranks` as a `Network` takes them."""
        mean, log_std = self.head(self.actor(self.encoder(obs), ranks=ranks)).chunk(2, -1)
        return TanhNormal(mean, self.limit(log_std))

    def limit(self, log_std: Tensor) -> Tensor:
        """Log stds [N, A] of which none is too low."""
        return log_std.clamp(min=self.log_std_min)

    def initial(self, batch_size: int) -> tuple[()]:
        """No carry: this agent remembers nothing."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B]."""
        policy = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng))
        return (), action, {"logprob": policy.logprob(action)}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.head.from_env(action)


def make_encoder(config: Any, spec: EnvSpec, rng: torch.Generator) -> MultiEncoder:
    """An encoder of the config's observation keys: actor and critics have one each, as their losses train it."""
    clip = config.obs_clip if config.normalize_obs else None
    return MultiEncoder(spec, config.mlp_keys.encoder, config.cnn_keys.encoder, config.encoder, rng, clip)

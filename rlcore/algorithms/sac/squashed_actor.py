"""Agents of soft actor-critic algorithms: their policy is a normal distribution squashed by tanh."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.algorithms.sac.config import Config, SquashedActorConfig
from rlcore.algorithms.sac.critics import ObsEncoder
from rlcore.functional.distributions import TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.network import Network
from rlcore.nn.network_keys import ActorConfig
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import EnvSpec
from rlcore.types import Ranks


class SquashedActor(nn.Module):
    """Actor with an observation encoder, an MLP and a tanh-squashed normal policy.

    The agent's actions, which a replay buffer stores, are the values before the tanh.

    Args:
        config: config of the actor network.
        spec: observation and action spaces of the environment.
        encoder: observation encoder.
        rng: CPU generator for the initialization.
    """

    def __init__(self, config: SquashedActorConfig, spec: EnvSpec, encoder: ObsEncoder, rng: torch.Generator) -> None:
        super().__init__()
        self.encoder = encoder
        self.keys = (*encoder.vectors, *encoder.images)
        self.history, self.log_std_min = spec.windows(self.keys), config.log_std_min
        self.actor = Network(encoder.output_size, config, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, "tanh_normal", ActorConfig(), rng)

    def forward(self, obs: dict[str, Tensor], ranks: Ranks | None = None) -> TanhNormal:
        """Return the policy (a distribution over actions [N, A]) for a batch of observations, key -> [N, ...].

        If the actor has batch normalization, the statistics are those of the batch over all `ranks`. If `ranks` is
        None, they are the running statistics.
        """
        mean, log_std = self.head(self.actor(self.encoder(obs), ranks=ranks)).chunk(2, -1)
        return TanhNormal(mean, self.limit(log_std))

    def limit(self, log_std: Tensor) -> Tensor:
        """Return the log stds [N, A] of the normal distribution, with `log_std_min` as lower limit."""
        return log_std.clamp(min=self.log_std_min)

    def initial(self, batch_size: int) -> tuple[()]:
        """Return the initial carry (recurrent state); it is empty, because this agent is feed-forward."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """Choose actions for B environments.

        Args:
            carry: recurrent state; (), because this agent is feed-forward.
            obs: key -> observations [B, ...].
            is_first: [B] bool; not used by this agent.
            rng: random stream for sampling; may be None if `greedy` is true.
            greedy: choose the mode of the policy instead of sampling.

        Returns:
            The empty carry; actions [B, A] before the tanh; and an extra output (`Trajectory.extras`): `logprob` [B],
            the log-probability of the action.
        """
        policy = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(is_first), rng))
        return (), action, {"logprob": policy.logprob(action)}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape], within the bounds of the space."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A], which are values before the tanh."""
        return self.head.from_env(action)


class Agent(SquashedActor):
    """Agent of SAC, DroQ, CrossQ and SimBa.

    Args:
        config: config of the algorithm; its observation keys, normalization and layers are used.
        spec: observation and action spaces of the environment.
        distribution: not used, because the only supported distribution is the squashed normal. Agents of other
            algorithms have the same argument.
        rng: CPU generator for the initialization.

    Attributes:
        encoder: observation encoder.
    """

    encoder: MultiEncoder

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__(config.actor, spec, make_encoder(config, spec, rng), rng)


def make_encoder(config: Config, spec: EnvSpec, rng: torch.Generator) -> MultiEncoder:
    """Create an observation encoder from the config of SAC.

    A learner calls this function twice: the actor's encoder is trained with the policy loss, and the encoder that all
    critics share with the critic loss.
    """
    clip = config.obs_clip if config.normalize_obs else None
    return MultiEncoder(spec, config.mlp_keys.encoder, config.cnn_keys.encoder, config.encoder, rng, clip)

"""Agent of on-policy actor-critic algorithms: encoder, actor, critic and policy head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.algorithms.on_policy.own_distribution import OwnHead
from rlcore.algorithms.on_policy.own_model import OwnModel
from rlcore.algorithms.on_policy.own_network import Settings
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import Masks
from rlcore.nn.composite_head import CompositeHead
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import ActionHead, PolicyHead
from rlcore.spec import EnvSpec, Window
from rlcore.types import Ranks


class ActorCritic(nn.Module):
    """Actor-critic in which actor and critic share an encoder and have an MLP each.

    The actor's MLP is followed by a policy head, which depends on the action space. If `algo.model` is set, the network
    of the user replaces encoder and MLPs. If the environment returns action masks and `config.action_masks` is true,
    the policy chooses only allowed actions.

    Args:
        config: config of the algorithm.
        spec: observation and action spaces of the environment.
        distribution: config key `distribution.type`, the policy distribution: auto, discrete, normal or tanh_normal.
        rng: CPU generator for the initialization.
        history: observation key -> window (number and spacing of the past frames that the agent receives). It extends
            the windows that `spec` and `algo.windows` define. The key `rlcore.spec.ACTION` stands for the agent's past
            actions.

    Attributes:
        recurrent: True if the agent has a recurrent state, so that `algo.model` must be a recurrent network.
    """

    recurrent: ClassVar[bool] = False

    def __init__(
        self,
        config: OnPolicyConfig,
        spec: EnvSpec,
        distribution: str,
        rng: torch.Generator,
        history: Mapping[str, Window] | None = None,
    ) -> None:
        super().__init__()
        vectors, images = config.mlp_keys.encoder, config.cnn_keys.encoder
        self.spec, self.masks = spec, spec.mask_keys if config.action_masks else ()
        self.keys = (*vectors, *images, *self.masks)
        self.history = spec.windows(self.keys) | config.history | dict(history or {})
        clip = config.obs_clip if config.normalize_obs else None
        self.model = None
        if config.model is not None:
            settings = Settings(config.model, config.model_config, self.recurrent, clip)
            self.model, self.actor = OwnModel(settings, spec, (*vectors, *images), self.history, rng), nn.Identity()
            self.head = self._make_head(self.model.output_size, config, spec, distribution, rng)
            return
        self.encoder = MultiEncoder(spec, vectors, images, config.encoder, rng, clip, self.history)
        features = self.core(config, spec, rng)
        self.actor = MLP(features, config.actor, rng)
        self.head = self._make_head(self.actor.output_size, config, spec, distribution, rng)
        self.critic = MLP(features, config.critic, rng, outputs=1)

    def _make_head(
        self, features: int, config: OnPolicyConfig, spec: EnvSpec, distribution: str, rng: torch.Generator
    ) -> ActionHead:
        if ":" not in distribution:
            kind = CompositeHead if spec.action.parts else PolicyHead
            return kind(features, spec.action, distribution, config.actor, rng)
        model = self if self.model is None else self.model.net
        masked_by = spec if self.masks else None
        head = OwnHead(features, spec.action, distribution, config.actor, rng, model, masked_by)
        head.check(torch.zeros(2, features))
        return head

    def core(self, config: OnPolicyConfig, spec: EnvSpec, rng: torch.Generator) -> int:
        """Build the layers between the encoder and the MLPs of actor and critic; return the number of output features.

        This class has no layers between them. A derived class overrides this method, for example to add a recurrent
        cell.
        """
        return self.encoder.output_size

    def observe(self, obs: dict[str, Tensor], ranks: Ranks) -> None:
        """Include the observations of a rollout, from all ranks, in the running statistics for normalization.

        `obs` maps keys to raw observations [T, B, *shape] without frame stacks. Nothing happens if observations are not
        normalized. Only this method changes the statistics. A learner calls it after the gradient steps of a rollout,
        so data collection and losses use the same statistics.
        """
        (self.model or self.encoder).observe(obs, ranks)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Policy, Tensor]:
        """Return the policy (a distribution over actions [N, A]) and the values [N] for a batch of observations.

        `obs` maps keys to observations [N, ...]; for keys with a frame stack, the shape is [N, frames, ...].
        """
        if self.model is not None:
            features, value = self.model(obs)
            return self.policy(features, obs), value
        encoded = self.encoder(obs)
        return self.policy(encoded, obs), self.critic(encoded).squeeze(-1)

    def policy(self, features: Tensor, obs: dict[str, Tensor]) -> Policy:
        """Return the policy (a distribution over actions [N, A]) for features [N, F] and action masks in `obs`."""
        parameters = self.head(self.actor(features))
        return self.head.policy(parameters, Masks(self.spec, obs)) if self.masks else self.head.policy(parameters)

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
            greedy: choose the most likely action instead of sampling.

        Returns:
            The empty carry; actions [B, A]; and two extra outputs (`Trajectory.extras`): `logprob` [B], the
            log-probability of the action, and `value` [B], the prediction of the critic.
        """
        policy, value = self(obs)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return (), action, {"logprob": policy.logprob(action), "value": value}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape], within the bounds of the space."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.head.from_env(action)

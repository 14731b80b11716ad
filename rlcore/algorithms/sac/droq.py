"""DroQ: Dropout Q-Functions for Doubly Efficient Reinforcement Learning. Hiraoka et al. 2022, arXiv:2110.02034.

SAC's learner with these keys:
    algorithm 2, line 4, G critic steps     replay_ratio 20, of which policy_delay null makes one step of the policy,
                                            the last of those that a row of the environments brings
    algorithm 2, line 6, target             soft_target: the lowest of two critics, dropout in the targets too
    algorithm 2, line 10, policy            actor.q mean
    figure 1, critic                        critic.dropout 0.01, critic.layer_norm: linear, dropout, LayerNorm, ReLU

Departs from the paper:
    the policy learns from the batch of the last critic step, as the authors' code does; H̄ is -A, SheepRL's.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """The actor."""

    q: str = other_default(sac.SquashedActorConfig, "q", "mean")


@dataclass(frozen=True, kw_only=True)
class CriticConfig(sac.CriticConfig):
    """The critics."""

    dropout: float = other_default(sac.CriticConfig, "dropout", 0.01)
    layer_norm: bool = other_default(sac.CriticConfig, "layer_norm", True)


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Keys of DroQ."""

    name: str = arg("droq", "the algorithm", choices=("droq",))
    replay_ratio: float = other_default(sac.Config, "replay_ratio", 20.0)
    policy_delay: int | None = other_default(sac.Config, "policy_delay", None)
    actor: ActorConfig = other_default(sac.Config, "actor", ActorConfig())
    critic: CriticConfig = other_default(sac.Config, "critic", CriticConfig())

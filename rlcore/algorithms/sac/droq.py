"""DroQ: Dropout Q-Functions for Doubly Efficient Reinforcement Learning. Hiraoka et al. 2022, arXiv:2110.02034.

DroQ uses the learner of SAC with different config keys. Parts of the paper and the keys that implement them:
    algorithm 2, line 4, G critic steps     replay_ratio=20; policy_delay=null: each time all environments have taken
                                            a step, the critic steps are followed by one policy gradient step
    algorithm 2, line 6, target             soft_target: minimum of two critics, with dropout in the targets
    algorithm 2, line 10, policy            actor.q=mean
    figure 1, critic                        critic.dropout=0.01, layer_norm=true (linear, dropout, LayerNorm, ReLU)

Differences from the paper:
    the policy gradient step uses the batch of the last critic step, as in the authors' code; the target entropy is -A
    for A action dimensions, as in SheepRL.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """Config keys of the actor network and its optimizer."""

    q: str = other_default(sac.SquashedActorConfig, "q", "mean")


@dataclass(frozen=True, kw_only=True)
class CriticConfig(sac.CriticConfig):
    """Config keys of critic networks with dropout and LayerNorm, and of their optimizer."""

    dropout: float = other_default(sac.CriticConfig, "dropout", 0.01)
    layer_norm: bool = other_default(sac.CriticConfig, "layer_norm", True)


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Config keys of DroQ."""

    name: str = arg("droq", "name of the algorithm", choices=("droq",))
    replay_ratio: float = other_default(sac.Config, "replay_ratio", 20.0)
    policy_delay: int | None = other_default(sac.Config, "policy_delay", None)
    actor: ActorConfig = other_default(sac.Config, "actor", ActorConfig())
    critic: CriticConfig = other_default(sac.Config, "critic", CriticConfig())

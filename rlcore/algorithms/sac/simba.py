"""SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning. Lee et al. 2024, arXiv:2410.09754.

SimBa uses the learner of SAC with different config keys. Parts of the paper and the keys that implement them:
    section 4.1, running statistics         normalize_obs=true
    section 4.1, residual block             actor.residual, critic.residual: x + MLP(LayerNorm(x)), LayerNorm at the end
    table of hyperparameters                AdamW with a weight decay of 0.01 and a learning rate of 1e-4; initial α
                                            0.01; target entropy -A/2 for A action dimensions; two gradient steps per
                                            policy step; actor with one block of 128 units

Differences from the paper:
    critics have two blocks of 128 units, because that is fast enough on a CPU; the paper uses 512 units (set
    `critic.hidden_size`). There are two critics, as in the paper's tasks with terminating episodes. The running
    statistics are computed from the batches that are sampled for training; in the paper, they are computed from the
    collected observations. Normalized observations are clipped to ±`obs_clip`. The output layer of the policy is
    initialized as in SAC.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig

OPTIMIZER = OptimizerConfig(name="adamw", lr=1e-4, weight_decay=1e-2, eps=1e-8)


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """Config keys of an actor network with residual blocks, and of its optimizer."""

    residual: bool = other_default(sac.SquashedActorConfig, "residual", True)
    hidden_size: int = other_default(sac.SquashedActorConfig, "hidden_size", 128)
    mlp_layers: int = other_default(sac.SquashedActorConfig, "mlp_layers", 1)
    optimizer: OptimizerConfig = other_default(sac.SquashedActorConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(sac.CriticConfig):
    """Config keys of critic networks with residual blocks, and of their optimizer."""

    residual: bool = other_default(sac.CriticConfig, "residual", True)
    hidden_size: int = other_default(sac.CriticConfig, "hidden_size", 128)
    optimizer: OptimizerConfig = other_default(sac.CriticConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig(sac.AlphaConfig):
    """Config keys of the temperature α (the weight of the entropy) and its optimizer."""

    alpha: float = other_default(sac.AlphaConfig, "alpha", 0.01)
    target_entropy_scale: float = other_default(sac.AlphaConfig, "target_entropy_scale", 0.5)
    optimizer: OptimizerConfig = other_default(sac.AlphaConfig, "optimizer", OptimizerConfig(lr=1e-4, eps=1e-8))


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Config keys of SimBa."""

    name: str = arg("simba", "name of the algorithm", choices=("simba",))
    hidden_size: int = other_default(sac.Config, "hidden_size", 128)
    replay_ratio: float = other_default(sac.Config, "replay_ratio", 2.0)
    normalize_obs: bool = other_default(sac.Config, "normalize_obs", True)
    actor: ActorConfig = other_default(sac.Config, "actor", ActorConfig())
    critic: CriticConfig = other_default(sac.Config, "critic", CriticConfig())
    alpha: AlphaConfig = other_default(sac.Config, "alpha", AlphaConfig())

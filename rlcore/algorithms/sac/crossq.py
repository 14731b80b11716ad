"""CrossQ: Batch Normalization in Deep RL for Greater Sample Efficiency. Bhatt et al. 2024, arXiv:1902.05605.

CrossQ uses the learner of SAC with different config keys. Parts of the paper and the keys that implement them:
    section 4.1, no target networks         critic.target=none: one forward pass of the critics for (s, a) and (s', a')
    section 4.1, batch normalization        batch_norm=true of actor and critics (rlcore.nn.batch_norm.BatchNorm)
    appendix, table of hyperparameters      policy_delay=3; Adam with β₁ = 0.5 and a learning rate of 1e-3

Differences from the paper:
    critics have 256 units per layer, because that is fast enough on a CPU and sufficient for small tasks; the paper
    uses 2048 (set `critic.hidden_size`). Batch renormalization uses the formula of Ioffe 2017; ε is added to the
    variance of the batch and to the running variance.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig

OPTIMIZER = OptimizerConfig(lr=1e-3, betas=(0.5, 0.999), eps=1e-8)


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """Config keys of an actor network with batch normalization, and of its optimizer."""

    batch_norm: bool = other_default(sac.SquashedActorConfig, "batch_norm", True)
    optimizer: OptimizerConfig = other_default(sac.SquashedActorConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(sac.CriticConfig):
    """Config keys of critic networks with batch normalization, and of their optimizer."""

    batch_norm: bool = other_default(sac.CriticConfig, "batch_norm", True)
    target: str = other_default(sac.CriticConfig, "target", "none")
    optimizer: OptimizerConfig = other_default(sac.CriticConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig(sac.AlphaConfig):
    """Config keys of the temperature α (the weight of the entropy) and its optimizer."""

    optimizer: OptimizerConfig = other_default(sac.AlphaConfig, "optimizer", OptimizerConfig(lr=1e-3, eps=1e-8))


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Config keys of CrossQ."""

    name: str = arg("crossq", "name of the algorithm", choices=("crossq",))
    policy_delay: int | None = other_default(sac.Config, "policy_delay", 3)
    actor: ActorConfig = other_default(sac.Config, "actor", ActorConfig())
    critic: CriticConfig = other_default(sac.Config, "critic", CriticConfig())
    alpha: AlphaConfig = other_default(sac.Config, "alpha", AlphaConfig())

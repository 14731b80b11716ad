"""The keys of SAC, and those by which others differ from it: DroQ, CrossQ, SimBa."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.off_policy import OffPolicyConfig, TrainedConfig
from rlcore.config.algorithm import VECTORS
from rlcore.config.schema import arg
from rlcore.errors import UserError
from rlcore.nn.network_keys import EncodedKeysConfig, FlatEncoderConfig, kind_of
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class SquashedActorConfig(TrainedConfig):
    """The actor."""

    log_std_min: float = arg(-5.0, "lowest log std of the normal before the tanh", low=-20, high=2)
    q: str = arg("min", "of the critics' estimates, what the policy climbs", choices=("min", "mean"))


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedConfig):
    """The critics."""

    n: int = arg(2, "N: critics, of which the lowest counts", low=1)
    target: str = arg("ema", "targets: slow copies of the critics, or none: they themselves", choices=("ema", "none"))
    target_network_frequency: int = arg(1, "gradient steps between two moves of the target critics", low=1)
    loss: str = arg(
        "mse", "½ (Q - y)², or the cross-entropy of Q as a distribution over bins", choices=("mse", "categorical")
    )
    bins: int = arg(101, "bins of a categorical critic, from symexp(-20) to symexp(20)", low=2)

    @property
    def outputs(self) -> int:
        """K: numbers that a critic gives for one estimate."""
        return self.bins if self.loss == "categorical" else 1


@dataclass(frozen=True, kw_only=True)
class AlphaConfig:
    """The temperature α, the weight of the entropy."""

    alpha: float = arg(1.0, "first value", above=0)
    target_entropy: float | None = arg(None, "H̄: entropy that α is tuned to, nats; null = -A, one less a dimension")
    target_entropy_scale: float = arg(1.0, "factor of that default", above=0)
    fixed: bool = arg(False, "α stays what it is")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "of log α")


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Keys of every soft actor-critic: bounded continuous actions by a squashed normal, and a temperature."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    alpha: AlphaConfig = arg(AlphaConfig(), "weight of the entropy")

    def check_with(self, run: RunConfig) -> None:
        """Refuse another distribution, and a memory that holds no batch."""
        if run.distribution.type not in ("auto", "tanh_normal"):
            kind = run.distribution.type
            raise UserError(f"distribution.type={kind}: {self.name} has a squashed normal; set it to auto")
        super().check_with(run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse actions that are not continuous and bounded, and observation keys that are not there."""
        if not spec.action.continuous:
            found = spec.action.space
            raise UserError(f"env.id={spec.id}: {self.name} takes continuous actions, and this one has {found}")
        kind_of(spec.action, "tanh_normal")
        super().check_spec(spec)

    def target_entropy(self, size: int) -> float:
        """H̄ of actions of so many dimensions, nats."""
        given = self.alpha.target_entropy
        return -self.alpha.target_entropy_scale * size if given is None else given


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Keys of SAC."""

    name: str = arg("sac", "the algorithm", choices=("sac",))
    policy_delay: int | None = arg(
        1, "gradient steps of the critics for one of the policy; null = all that a row of environments brings", low=1
    )
    mlp_keys: EncodedKeysConfig = arg(EncodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: EncodedKeysConfig = arg(EncodedKeysConfig(), "image observation keys")
    normalize_obs: bool = arg(False, "observations by the running mean and std of those that are drawn")
    obs_clip: float = arg(10.0, "largest normalised observation", above=0)
    encoder: FlatEncoderConfig = arg(FlatEncoderConfig(), "of the actor, and of the critics: one each")
    actor: SquashedActorConfig = arg(SquashedActorConfig(), "the policy's network")
    critic: CriticConfig = arg(CriticConfig(), "the Q networks")

    def delay(self, num_envs: int) -> int:
        """Gradient steps of the critics for one of the policy, of a rank with so many environments."""
        return self.policy_delay or math.ceil(self.replay_ratio * num_envs)

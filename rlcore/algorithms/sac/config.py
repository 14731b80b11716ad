"""The keys of SAC, and those by which others differ from it: DroQ, CrossQ, SimBa."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcore.algorithms.off_policy import SoftConfig, TrainedConfig
from rlcore.config.schema import Needs, arg
from rlcore.nn.network_keys import EncodedKeysConfig, FlatEncoderConfig


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
    target_network_frequency: int = arg(
        1,
        "gradient steps between two moves of the target critics",
        low=1,
        needs=Needs("target", lambda target: target == "ema", "=ema"),
    )
    loss: str = arg(
        "mse", "½ (Q - y)², or the cross-entropy of Q as a distribution over bins", choices=("mse", "categorical")
    )
    bins: int = arg(
        101,
        "bins of a categorical critic, from symexp(-20) to symexp(20)",
        low=2,
        needs=Needs("loss", lambda loss: loss == "categorical", "=categorical"),
    )

    @property
    def outputs(self) -> int:
        """K: numbers that a critic gives for one estimate."""
        return self.bins if self.loss == "categorical" else 1


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
    obs_clip: float = arg(10.0, "largest normalised observation", above=0, needs=Needs("normalize_obs", bool, "=true"))
    encoder: FlatEncoderConfig = arg(FlatEncoderConfig(), "of the actor, and of the critics: one each")
    actor: SquashedActorConfig = arg(SquashedActorConfig(), "the policy's network")
    critic: CriticConfig = arg(CriticConfig(), "the Q networks")

    def delay(self, num_envs: int) -> int:
        """Gradient steps of the critics for one of the policy, of a rank with so many environments."""
        return self.policy_delay or math.ceil(self.replay_ratio * num_envs)

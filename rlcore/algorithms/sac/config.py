"""Config keys of SAC. DroQ, CrossQ and SimBa have the same keys with other defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcore.algorithms.off_policy import SoftConfig, TrainedConfig
from rlcore.config.schema import Needs, arg
from rlcore.nn.network_keys import EncodedKeysConfig, FlatEncoderConfig


@dataclass(frozen=True, kw_only=True)
class SquashedActorConfig(TrainedConfig):
    """Config keys of the actor network and its optimizer."""

    log_std_min: float = arg(-5.0, "lowest log std of the normal distribution before the tanh", low=-20, high=2)
    q: str = arg("min", "Q in the policy loss: minimum or mean of the critics", choices=("min", "mean"))


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedConfig):
    """Config keys of the critic networks and their optimizer."""

    n: int = arg(2, "number of critics; targets use their minimum", low=1)
    target: str = arg(
        "ema",
        "target critics: ema (moving average of the critics) or none (use the critics themselves)",
        choices=("ema", "none"),
    )
    target_network_frequency: int = arg(
        1,
        "gradient steps between updates of the target critics",
        low=1,
        needs=Needs("target", lambda target: target == "ema", "=ema"),
    )
    loss: str = arg(
        "mse",
        "critic loss: mse (½ (Q - y)²) or categorical (cross-entropy of a distribution over bins)",
        choices=("mse", "categorical"),
    )
    bins: int = arg(
        101,
        "bins of a categorical critic, from symexp(-20) to symexp(20)",
        low=2,
        needs=Needs("loss", lambda loss: loss == "categorical", "=categorical"),
    )

    @property
    def outputs(self) -> int:
        """Number K of outputs of a critic: the number of bins of a categorical critic, otherwise 1."""
        return self.bins if self.loss == "categorical" else 1


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Config keys of SAC."""

    name: str = arg("sac", "name of the algorithm", choices=("sac",))
    policy_delay: int | None = arg(
        1,
        "critic gradient steps per policy gradient step; null = replay_ratio × number of environments of a rank",
        low=1,
    )
    mlp_keys: EncodedKeysConfig = arg(EncodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: EncodedKeysConfig = arg(EncodedKeysConfig(), "image observation keys")
    normalize_obs: bool = arg(False, "normalize observations by the running mean and std of sampled batches")
    obs_clip: float = arg(
        10.0,
        "clip normalized observations to this absolute value",
        above=0,
        needs=Needs("normalize_obs", bool, "=true"),
    )
    encoder: FlatEncoderConfig = arg(
        FlatEncoderConfig(), "observation encoder; the actor has one, the critics share another"
    )
    actor: SquashedActorConfig = arg(SquashedActorConfig(), "actor network")
    critic: CriticConfig = arg(CriticConfig(), "critic networks")

    def delay(self, num_envs: int) -> int:
        """Return the number of critic gradient steps per policy gradient step.

        `num_envs` is the number of environments of one rank; it is used if `policy_delay` is null.
        """
        return self.policy_delay or math.ceil(self.replay_ratio * num_envs)

"""The keys of SAC-AE."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms import off_policy
from rlcore.algorithms.off_policy import OffPolicyConfig, SoftConfig, TrainedConfig
from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, DecodedKeysConfig, MLPConfig
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.spec import EnvSpec

OPTIMIZER = OptimizerConfig(lr=1e-3, eps=1e-8)
OWN = ("lr", "weight_decay")  # settings of their optimizers in which encoder and decoder may differ


@dataclass(frozen=True)
class PerceptronConfig(MLPConfig):
    """The perceptron of vector keys, and the convolutions of image keys, on one side of z."""

    dense_act: str = other_default(MLPConfig, "dense_act", "relu")
    ortho_init: bool = other_default(MLPConfig, "ortho_init", True)
    cnn_channels_multiplier: int = arg(1, "of 32 channels of each convolution", low=1)


@dataclass(frozen=True)
class EncoderConfig(PerceptronConfig):
    """Observations to z."""

    tau: float = arg(0.05, "τ of the target critics' encoder", above=0, high=1)
    features_dim: int = arg(50, "numbers that z has of image keys", low=1)
    optimizer: OptimizerConfig = arg(OPTIMIZER, "of its step on the reconstruction loss")


@dataclass(frozen=True)
class DecoderConfig(PerceptronConfig):
    """Observations again from z."""

    l2_lambda: float = arg(1e-6, "λ_z: weight of ½‖z‖², once for each key that is decoded", low=0)
    per_rank_update_freq: int = arg(1, "gradient steps between two on the reconstruction loss", low=1)
    optimizer: OptimizerConfig = arg(replace(OPTIMIZER, weight_decay=1e-7), "its weight_decay is λ_θ")


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """The actor behind its encoder."""

    hidden_size: int = other_default(sac.SquashedActorConfig, "hidden_size", 1024)
    log_std_min: float = other_default(sac.SquashedActorConfig, "log_std_min", -10.0)
    per_rank_update_freq: int = arg(2, "gradient steps between two of the actor and of α", low=1)
    optimizer: OptimizerConfig = other_default(sac.SquashedActorConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TrainedConfig):
    """The critics behind their encoder."""

    hidden_size: int = other_default(TrainedConfig, "hidden_size", 1024)
    n: int = arg(2, "N: critics, of which the lowest counts", low=1)
    per_rank_target_network_update_freq: int = arg(2, "gradient steps between two moves of the target critics", low=1)
    target_network_frequency: int = arg(1, "SAC's key", low=1, unused="per_rank_target_network_update_freq says it")
    optimizer: OptimizerConfig = other_default(TrainedConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig(off_policy.AlphaConfig):
    """The temperature α."""

    alpha: float = other_default(off_policy.AlphaConfig, "alpha", 0.1)
    optimizer: OptimizerConfig = other_default(
        off_policy.AlphaConfig, "optimizer", OptimizerConfig(lr=1e-4, eps=1e-8, betas=(0.5, 0.999))
    )


@dataclass(frozen=True, kw_only=True)
class Config(SoftConfig):
    """Keys of SAC-AE."""

    smallest: ClassVar[int] = 16  # of which the convolutions leave one

    name: str = arg("sac_ae", "the algorithm", choices=("sac_ae",))
    tau: float = other_default(OffPolicyConfig, "tau", 0.01)
    hidden_size: int = other_default(OffPolicyConfig, "hidden_size", 1024)
    per_rank_batch_size: int = other_default(OffPolicyConfig, "per_rank_batch_size", 128)
    learning_starts: int = other_default(OffPolicyConfig, "learning_starts", 1000)
    per_rank_pretrain_steps: int = other_default(OffPolicyConfig, "per_rank_pretrain_steps", 1000)
    cnn_channels_multiplier: int = arg(1, "for the parts that do not say", low=1)
    dense_units: int = arg(64, "units of hidden layers of vector keys, for the parts that do not say", low=1)
    mlp_layers: int = arg(2, "hidden layers, likewise", low=0)
    dense_act: str = arg("relu", "activation, likewise", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm, likewise")
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    encoder: EncoderConfig = arg(EncoderConfig(), "trained by the critics' loss and by the reconstruction")
    decoder: DecoderConfig = arg(DecoderConfig(), "trained by the reconstruction")
    actor: ActorConfig = arg(ActorConfig(), "the policy's network")
    critic: CriticConfig = arg(CriticConfig(), "the Q networks")
    alpha: AlphaConfig = arg(AlphaConfig(), "weight of the entropy")

    def check(self, prefix: str) -> None:
        """Refuse keys of which none is decoded, and two optimizers that no single step takes."""
        super().check(prefix)
        if not self.mlp_keys.decoded and not self.cnn_keys.decoded:
            raise UserError(f"{prefix}cnn_keys.decoder=[]: name a key to decode, or take exp=sac")
        for name in (field.name for field in fields(OptimizerConfig) if field.name not in OWN):
            one, other = (getattr(part.optimizer, name) for part in (self.decoder, self.encoder))
            if one != other:
                raise UserError(
                    f"{prefix}decoder.optimizer.{name}={spell(one)}: must be that of {prefix}encoder.optimizer "
                    f"({spell(other)}); one step trains both on the reconstruction, and {' and '.join(OWN)} may differ"
                )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse images that the decoder cannot give back, beside what every soft actor-critic refuses."""
        super().check_spec(spec)
        for key in self.cnn_keys.encoder:
            height, width = spec.obs[key].pixels
            if height % 2 or width % 2:
                told = f"{key} {height} × {width}"
                raise UserError(f"algo.cnn_keys.encoder: an even number of pixels a side ({told}); set env.screen_size")

    def reconstruction_optimizer(self) -> OptimizerConfig:
        """Settings of the encoder's optimizer, and in a group those of the decoder's."""
        own = {name: getattr(self.decoder.optimizer, name) for name in OWN}
        return replace(self.encoder.optimizer, groups={"decoder": own})

"""Config keys of SAC-AE."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.algorithms.sac import config as sac
from rlcore.config.schema import arg, other_default
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, DecodedKeysConfig, MLPConfig, NetworkConfig, check_keys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.spec import EnvSpec

OPTIMIZER = OptimizerConfig(lr=1e-3, eps=1e-8)
SMALLEST = 16  # smallest image side in pixels; the convolutions reduce it to 1
OWN = ("lr", "weight_decay")  # optimizer settings that may differ between encoder and decoder


@dataclass(frozen=True)
class PerceptronConfig(MLPConfig):
    """Config keys of the layers of encoder or decoder: an MLP for vector keys, convolutions for image keys."""

    dense_act: str = other_default(MLPConfig, "dense_act", "relu")
    ortho_init: bool = other_default(MLPConfig, "ortho_init", True)
    cnn_channels_multiplier: int = arg(1, "multiplier of the 32 channels of each convolution", low=1)


@dataclass(frozen=True)
class EncoderConfig(PerceptronConfig):
    """Config keys of the encoder, which maps observations to the latent vector z."""

    tau: float = arg(0.05, "τ of the soft update of the target critics' encoder", above=0, high=1)
    features_dim: int = arg(50, "number of features of all image keys together in the latent vector z", low=1)
    optimizer: OptimizerConfig = arg(OPTIMIZER, "optimizer of the encoder on the reconstruction loss")


@dataclass(frozen=True)
class DecoderConfig(PerceptronConfig):
    """Config keys of the decoder, which reconstructs observations from the latent vector z."""

    l2_lambda: float = arg(1e-6, "λ_z: weight of the penalty ½‖z‖², added once per decoded key", low=0)
    per_rank_update_freq: int = arg(1, "gradient steps between updates on the reconstruction loss", low=1)
    optimizer: OptimizerConfig = arg(
        replace(OPTIMIZER, weight_decay=1e-7), "optimizer of the decoder (weight decay λ_θ)"
    )


@dataclass(frozen=True, kw_only=True)
class ActorConfig(sac.SquashedActorConfig):
    """Config keys of the actor network, whose input is the encoder's output, and of its optimizer."""

    hidden_size: int = other_default(sac.SquashedActorConfig, "hidden_size", 1024)
    log_std_min: float = other_default(sac.SquashedActorConfig, "log_std_min", -10.0)
    per_rank_update_freq: int = arg(2, "gradient steps between updates of the actor and of α", low=1)
    optimizer: OptimizerConfig = other_default(sac.SquashedActorConfig, "optimizer", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(NetworkConfig):
    """Config keys of the critic networks, whose input is the encoder's output, and of their optimizer."""

    hidden_size: int = other_default(NetworkConfig, "hidden_size", 1024)
    optimizer: OptimizerConfig = arg(OPTIMIZER, "optimizer of this network")
    n: int = arg(2, "number of critics; targets use their minimum", low=1)
    per_rank_target_network_update_freq: int = arg(2, "gradient steps between updates of the target critics", low=1)
    target_network_frequency: int = arg(
        1, "key of SAC", low=1, unused="set per_rank_target_network_update_freq instead"
    )


@dataclass(frozen=True, kw_only=True)
class AlphaConfig(sac.AlphaConfig):
    """Config keys of the temperature α (the weight of the entropy) and its optimizer."""

    alpha: float = other_default(sac.AlphaConfig, "alpha", 0.1)
    optimizer: OptimizerConfig = other_default(
        sac.AlphaConfig, "optimizer", OptimizerConfig(lr=1e-4, eps=1e-8, betas=(0.5, 0.999))
    )


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Config keys of SAC-AE."""

    kinds: ClassVar[frozenset[str]] = sac.KINDS

    name: str = arg("sac_ae", "name of the algorithm", choices=("sac_ae",))
    per_rank_batch_size: int = other_default(ReplayConfig, "per_rank_batch_size", 128)
    learning_starts: int = other_default(ReplayConfig, "learning_starts", 1000)
    per_rank_pretrain_steps: int = other_default(ReplayConfig, "per_rank_pretrain_steps", 1000)
    tau: float = other_default(sac.Config, "tau", 0.01)
    hidden_size: int = other_default(sac.Config, "hidden_size", 1024)
    n_step: int = other_default(sac.Config, "n_step", 1)
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    alpha: AlphaConfig = arg(AlphaConfig(), "temperature, the weight of the entropy")
    cnn_channels_multiplier: int = arg(1, "default multiplier of the 32 channels of convolutions", low=1)
    dense_units: int = arg(64, "default number of units in each hidden layer for vector keys", low=1)
    mlp_layers: int = arg(2, "default number of hidden layers for vector keys", low=0)
    dense_act: str = arg("relu", "default activation for vector keys", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "use LayerNorm in hidden layers for vector keys, by default")
    encoder: EncoderConfig = arg(EncoderConfig(), "encoder, trained on the critic loss and the reconstruction loss")
    decoder: DecoderConfig = arg(DecoderConfig(), "decoder, trained on the reconstruction loss")
    actor: ActorConfig = arg(ActorConfig(), "actor network")
    critic: CriticConfig = arg(CriticConfig(), "critic networks")

    def check(self, prefix: str) -> None:
        """Raise UserError for settings that contradict each other.

        At least one observation key must be decoded. One optimizer trains encoder and decoder, so their optimizer
        settings must be equal, except for learning rate and weight decay. `prefix` is the dotted path of this config
        group, such as "algo."; error messages start with it.
        """
        super().check(prefix)
        if not self.mlp_keys.decoded and not self.cnn_keys.decoded:
            raise UserError(
                f"{prefix}cnn_keys.decoder=[]: at least one observation key must be decoded; name a key of "
                f"{prefix}cnn_keys.encoder or {prefix}mlp_keys.encoder, or use exp=sac"
            )
        for name in (field.name for field in fields(OptimizerConfig) if field.name not in OWN):
            one, other = (getattr(part.optimizer, name) for part in (self.decoder, self.encoder))
            if one != other:
                raise UserError(
                    f"{prefix}decoder.optimizer.{name}={spell(one)}: must be equal to {prefix}encoder.optimizer.{name} "
                    f"({spell(other)}), because one optimizer trains encoder and decoder; only {' and '.join(OWN)} "
                    "may differ"
                )

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        return super().metric_names() | sac.METRICS | {"Loss/reconstruction_loss"}

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the policy distribution is not a squashed normal, or the replay buffer is unsuitable."""
        sac.check_run(self, self.n_step, run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the algorithm cannot be trained in an environment.

        Actions must be continuous and bounded, and the observation keys must be readable. Images must have an even
        height and width, because the decoder cannot reconstruct others.
        """
        sac.check_actions(self.name, spec)
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, SMALLEST)
        for key in self.cnn_keys.encoder:
            height, width = spec.obs[key].pixels
            if height % 2 or width % 2:
                raise UserError(
                    f"algo.cnn_keys.encoder: images of {key} have {height} × {width} pixels; height and width must be "
                    "even; set env.screen_size"
                )

    def reconstruction_optimizer(self) -> OptimizerConfig:
        """Return the config of the optimizer that trains encoder and decoder on the reconstruction loss.

        It has the settings of the encoder's optimizer, and a parameter group with learning rate and weight decay of the
        decoder.
        """
        own = {name: getattr(self.decoder.optimizer, name) for name in OWN}
        return replace(self.encoder.optimizer, groups={"decoder": own})

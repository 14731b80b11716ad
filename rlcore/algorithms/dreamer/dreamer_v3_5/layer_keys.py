"""Config keys of the networks of Dreamer V3.5, with SheepRL's names and the defaults of SheepRL's size 1M.

All layers have a bias and are followed by RMSNorm and an activation, which are selected by `algo.norm_eps`,
`algo.dense_act` and `algo.cnn_act`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.dreamer.world_keys import CNNSpec, InitConfig, MLPSpec
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError

FORM = InitConfig(scale=None)


def mlp(units: int, count: int) -> MLPSpec:
    """Return the settings of `count` hidden layers; norm and activation are those of `networks.make_networks`."""
    return MLPSpec(units, count, "", FORM)


@dataclass(frozen=True)
class DenseConfig:
    """Config keys of the hidden layers of an MLP."""

    mlp_layers: int = arg(3, "number of hidden layers", low=0)
    dense_units: int = arg(64, "units of each hidden layer", low=1)

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        return mlp(self.dense_units, self.mlp_layers)


@dataclass(frozen=True)
class HeadConfig(DenseConfig):
    """Config keys of the continue head, which has one hidden layer by default."""

    mlp_layers: int = other_default(DenseConfig, "mlp_layers", 1)


@dataclass(frozen=True)
class RewardConfig(HeadConfig):
    """Config keys of the reward head, which predicts a distribution over bins (two-hot encoding)."""

    bins: int = arg(255, "bins, at the symexp of -20 to 20", low=3)


@dataclass(frozen=True)
class PriorConfig:
    """Config keys of the prior, an MLP that reads the recurrent state."""

    hidden_size: int = arg(64, "units of each hidden layer", low=1)
    layers: int = arg(2, "number of hidden layers", low=0)


@dataclass(frozen=True)
class PosteriorConfig(PriorConfig):
    """Config keys of the posterior, which reads recurrent state and observation."""

    layers: int = arg(1, "number of hidden layers; only 1 is supported", choices=(1,))


@dataclass(frozen=True)
class RecurrentConfig:
    """Config keys of the recurrent cell, a `networks.BlockGRU`."""

    recurrent_state_size: int = arg(512, "size of the deterministic state h", low=1)
    hidden_size: int = arg(64, "units of each of the three layers that read state h, state z and action", low=1)
    blocks: int = arg(8, "blocks of the recurrent weights; must divide recurrent_state_size", low=1)
    dynamics_layers: int = arg(1, "number of block-diagonal layers before the gates", low=0)

    @property
    def layers(self) -> MLPSpec:
        """Settings of the layers before the cell; there are none."""
        return mlp(self.hidden_size, 0)

    @property
    def cell(self) -> None:
        """Settings of the norm of the cell; `networks.make_networks` sets its norm."""
        return None


@dataclass(frozen=True)
class ImageConfig(DenseConfig):
    """Config keys that the encoder and the decoder of observations share: a CNN for images, an MLP for vectors."""

    cnn_channels_multiplier: int = arg(
        4, "a stage of the CNN has this number of channels, times its number in cnn_stages", low=1
    )
    cnn_stages: tuple[int, ...] = arg(
        (2, 3, 4, 4), "stages of the CNN, each with half the width and height of the one before", low=1
    )
    cnn_kernel_size: int = arg(5, "kernel of the convolutions, in pixels; must be odd", low=1)

    def check(self, prefix: str) -> None:
        """Raise UserError if there are no stages, or if the kernels have no center; `prefix` precedes each key."""
        if not self.cnn_stages:
            raise UserError(f"{prefix}cnn_stages=[]: must have at least one stage")
        if self.cnn_kernel_size % 2 == 0:
            raise UserError(f"{prefix}cnn_kernel_size={self.cnn_kernel_size}: must be odd")

    @property
    def channels(self) -> list[int]:
        """Number of channels of each stage."""
        return [self.cnn_channels_multiplier * factor for factor in self.cnn_stages]

    @property
    def symlog(self) -> bool:
        """True if vectors are encoded and reconstructed in symlog space."""
        return True

    @property
    def stages(self) -> CNNSpec:
        """Settings of the CNN; `networks.make_networks` uses the keys of this group instead."""
        return CNNSpec(self.cnn_channels_multiplier, "", FORM, padded=True)


@dataclass(frozen=True)
class EncoderConfig(ImageConfig):
    """Config keys of the encoder of observations."""

    symlog_inputs: bool = arg(True, "encode and reconstruct vectors in symlog space")

    @property
    def symlog(self) -> bool:
        """True if vectors are encoded and reconstructed in symlog space."""
        return self.symlog_inputs


@dataclass(frozen=True)
class DecoderConfig(ImageConfig):
    """Config keys of the decoder of observations."""

    block_space: int = arg(
        8,
        "blocks of the layer from the recurrent state to the first feature maps; 0 = a dense layer from the whole "
        "model state",
        low=0,
    )

"""Config keys of the layers in Dreamer V3's networks, with SheepRL's names and the defaults of SheepRL's size XS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer.world_keys import (
    CNNSpec,
    DenseKeys,
    HiddenKeys,
    InitConfig,
    LayerKeys,
    ObservationKeys,
    RecurrentKeys,
)
from rlcore.config.schema import arg, other_default

NORMS = ("layer_norm", "identity")


@dataclass(frozen=True)
class NormSettings:
    """Config keys of the parameters of a LayerNorm."""

    eps: float = arg(1e-3, "ε of the LayerNorm", above=0)


@dataclass(frozen=True)
class NormConfig:
    """Config keys of the LayerNorm before each activation of a network, with SheepRL's names."""

    cls: str = arg("layer_norm", "norm of the layers; identity = no norm, and layers have biases", choices=NORMS)
    kw: NormSettings = arg(NormSettings(), "settings of the norm")

    @property
    def eps(self) -> float | None:
        """ε that LayerNorm adds to the variance; None if the network has no LayerNorm."""
        return self.kw.eps if self.cls == "layer_norm" else None

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of layers; layers that are followed by LayerNorm have no bias."""
        return InitConfig(self.eps, self.eps is None, None)


class Normed(LayerKeys):
    """Base class of config groups with a key `layer_norm`, which applies to all layers of the group."""

    layer_norm: NormConfig

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of this group's layers."""
        return self.layer_norm.form


@dataclass(frozen=True)
class DenseConfig(Normed, DenseKeys):
    """Config keys of the hidden layers of an MLP.

    Each one is a linear layer, followed by LayerNorm and an activation.
    """

    dense_units: int = other_default(DenseKeys, "dense_units", 256)
    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 1)
    dense_act: str = other_default(DenseKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm before each activation")


@dataclass(frozen=True)
class HiddenConfig(Normed, HiddenKeys):
    """Config keys of a network with one hidden layer: a linear layer, followed by LayerNorm and an activation."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 256)
    dense_act: str = other_default(HiddenKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm before the activation")


@dataclass(frozen=True)
class RecurrentConfig(Normed, RecurrentKeys):
    """Config keys of the recurrent cell, and of the dense layer before it."""

    act: ClassVar[str] = "silu"

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 256)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 256)
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm of the layer before the cell, and of the cell's gates")

    @property
    def cell(self) -> InitConfig:
        """Normalization and bias of the gates of the recurrent cell, which is a `dense.LayerNormGRU`."""
        return self.form._replace(bias=False)


@dataclass(frozen=True)
class ObservationConfig(ObservationKeys):
    """Config keys of an observation encoder or decoder: a CNN for images, an MLP for vectors."""

    symlog: ClassVar[bool] = True

    cnn_channels_multiplier: int = other_default(ObservationKeys, "cnn_channels_multiplier", 24)
    cnn_act: str = other_default(ObservationKeys, "cnn_act", "silu")
    cnn_layer_norm: NormConfig = arg(NormConfig(), "LayerNorm over the channels of each pixel, before the activation")
    dense_units: int = other_default(ObservationKeys, "dense_units", 256)
    mlp_layers: int = other_default(ObservationKeys, "mlp_layers", 1)
    dense_act: str = other_default(ObservationKeys, "dense_act", "silu")
    mlp_layer_norm: NormConfig = arg(NormConfig(), "LayerNorm before each activation of the MLP")

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of the MLP's layers."""
        return self.mlp_layer_norm.form

    @property
    def stages(self) -> CNNSpec:
        """Settings of the CNN for image observations."""
        return CNNSpec(self.cnn_channels_multiplier, self.cnn_act, self.cnn_layer_norm.form, padded=True)


@dataclass(frozen=True)
class TwoHotConfig(DenseConfig):
    """Config keys of a network that predicts a scalar as a distribution over bins (two-hot encoding)."""

    bins: int = arg(255, "bins, from -20 to 20 in symlog space", low=3)
    spacing: str = arg(
        "symlog",
        "space of the two-hot target: symlog (of the scalar), or symexp (the scalar without symlog, with bins at the "
        "symexp of -20 to 20, as in the paper's second version)",
        choices=("symlog", "symexp"),
    )

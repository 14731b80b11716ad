"""Config keys of Dreamer V3's networks with LayerNorm, with SheepRL's names and the defaults of its size XS."""

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
    """Settings of a LayerNorm."""

    eps: float = arg(1e-3, "ε of the LayerNorm", above=0)


@dataclass(frozen=True)
class NormConfig:
    """LayerNorm before an activation, with SheepRL's names."""

    cls: str = arg("layer_norm", "norm of the layers; identity = no norm, and layers have biases", choices=NORMS)
    kw: NormSettings = arg(NormSettings(), "settings of the norm")

    @property
    def eps(self) -> float | None:
        """ε added to the variance; None if there is no norm."""
        return self.kw.eps if self.cls == "layer_norm" else None

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of layers; a layer that is followed by a norm has no bias."""
        return InitConfig(self.eps, self.eps is None, None)


class Normed(LayerKeys):
    """Base class of config groups with one normalization setting, `layer_norm`, for all layers of the group."""

    layer_norm: NormConfig

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of the layers."""
        return self.layer_norm.form


@dataclass(frozen=True)
class DenseConfig(Normed, DenseKeys):
    """Hidden layers; each one is a linear layer, followed by LayerNorm and an activation."""

    dense_units: int = other_default(DenseKeys, "dense_units", 256)
    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 1)
    dense_act: str = other_default(DenseKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm before each activation")


@dataclass(frozen=True)
class HiddenConfig(Normed, HiddenKeys):
    """One hidden layer: a linear layer, followed by LayerNorm and an activation."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 256)
    dense_act: str = other_default(HiddenKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm before the activation")


@dataclass(frozen=True)
class RecurrentConfig(Normed, RecurrentKeys):
    """Recurrent state, and the layer before the recurrent cell."""

    act: ClassVar[str] = "silu"

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 256)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 256)
    layer_norm: NormConfig = arg(NormConfig(), "LayerNorm of the layer before the cell, and of the cell's gates")

    @property
    def cell(self) -> InitConfig:
        """Normalization and bias of the gates of a `dense.LayerNormGRU`."""
        return self.form._replace(bias=False)


@dataclass(frozen=True)
class ObservationConfig(ObservationKeys):
    """Observation encoder or decoder: a CNN for image keys, an MLP for vector keys."""

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
        """Settings of the convolutions for image keys."""
        return CNNSpec(self.cnn_channels_multiplier, self.cnn_act, self.cnn_layer_norm.form, padded=True)


@dataclass(frozen=True)
class TwoHotConfig(DenseConfig):
    """Head that predicts a scalar as a distribution over bins."""

    bins: int = arg(255, "bins, from -20 to 20 in symlog space", low=3)
    spacing: str = arg(
        "symlog",
        "space of the two-hot target: symlog (of the scalar), or symexp (the scalar itself, with bins at the symexp of "
        "-20 to 20, as in the paper's second version)",
        choices=("symlog", "symexp"),
    )

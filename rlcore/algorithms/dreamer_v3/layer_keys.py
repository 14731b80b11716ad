"""Keys of Dreamer V3's networks, whose layers have a LayerNorm, under SheepRL's names; the defaults of its size XS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlcore.config.schema import arg, other_default
from rlcore.nn.world_keys import DenseKeys, Form, Group, HiddenKeys, ObservationKeys, RecurrentKeys, Stages

NORMS = ("layer_norm", "identity")


@dataclass(frozen=True)
class NormSettings:
    """Settings of a LayerNorm."""

    eps: float = arg(1e-3, "added to the variance", above=0)


@dataclass(frozen=True)
class NormConfig:
    """LayerNorm before an activation, under SheepRL's names."""

    cls: str = arg("layer_norm", "which; identity: none, and layers have biases", choices=NORMS)
    kw: NormSettings = arg(NormSettings(), "its settings")

    @property
    def eps(self) -> float | None:
        """Added to the variance; None: there is no norm."""
        return self.kw.eps if self.cls == "layer_norm" else None

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of layers, which have no bias before a norm."""
        return Form(self.eps, self.eps is None, None)


class Normed(Group):
    """Base of V3's groups of layers with one norm."""

    layer_norm: NormConfig

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the group's layers."""
        return self.layer_norm.form


@dataclass(frozen=True)
class DenseConfig(Normed, DenseKeys):
    """Hidden layers of (linear, LayerNorm, activation)."""

    dense_units: int = other_default(DenseKeys, "dense_units", 256)
    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 1)
    dense_act: str = other_default(DenseKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "before each activation")


@dataclass(frozen=True)
class HiddenConfig(Normed, HiddenKeys):
    """One hidden layer of (linear, LayerNorm, activation)."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 256)
    dense_act: str = other_default(HiddenKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "before it")


@dataclass(frozen=True)
class RecurrentConfig(Normed, RecurrentKeys):
    """The recurrent state and the layer before its cell."""

    act: ClassVar[str] = "silu"

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 256)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 256)
    layer_norm: NormConfig = arg(NormConfig(), "of that layer, and of the cell's gates")

    @property
    def cell(self) -> Form:
        """Norm and bias of the gates of a `rlcore.nn.dense.LayerNormGRU`."""
        return self.form._replace(bias=False)


@dataclass(frozen=True)
class ObservationConfig(ObservationKeys):
    """Networks of one side, encoder or decoder: of images in stages of convolutions, of vectors one perceptron."""

    symlog: ClassVar[bool] = True

    cnn_channels_multiplier: int = other_default(ObservationKeys, "cnn_channels_multiplier", 24)
    cnn_act: str = other_default(ObservationKeys, "cnn_act", "silu")
    cnn_layer_norm: NormConfig = arg(NormConfig(), "of each pixel's channels, before it")
    dense_units: int = other_default(ObservationKeys, "dense_units", 256)
    mlp_layers: int = other_default(ObservationKeys, "mlp_layers", 1)
    dense_act: str = other_default(ObservationKeys, "dense_act", "silu")
    mlp_layer_norm: NormConfig = arg(NormConfig(), "before each activation")

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the perceptron's layers."""
        return self.mlp_layer_norm.form

    @property
    def stages(self) -> Stages:
        """The convolutions of the images."""
        return Stages(self.cnn_channels_multiplier, self.cnn_act, self.cnn_layer_norm.form, padded=True)


@dataclass(frozen=True)
class TwoHotConfig(DenseConfig):
    """A head that gives a distribution over bins of a number."""

    bins: int = arg(255, "K: bins from -20 to 20 in symlog space", low=3)
    spacing: str = arg(
        "symlog",
        "the number is learned: symlog, in symlog space; symexp, as it is, by bins at the symexp of these (the paper's "
        "second version)",
        choices=("symlog", "symexp"),
    )

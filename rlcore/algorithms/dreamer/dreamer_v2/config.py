"""Config keys of Dreamer V2, with SheepRL's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.world_keys import (
    WORLD_PARTS,
    ActorKeys,
    DenseKeys,
    DiscountKeys,
    EndsKeys,
    HiddenKeys,
    InitConfig,
    LayerKeys,
    ObservationKeys,
    RecurrentKeys,
)
from rlcore.config.schema import Needs, arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig

EPS = 1e-3  # ε of every LayerNorm, as in Keras
DECAY = 1e-6  # weight decay


@dataclass(frozen=True)
class Switched(LayerKeys):
    """Base class of config groups with a key `layer_norm`, which adds LayerNorm to all layers of the group."""

    layer_norm: bool = arg(False, "LayerNorm before each activation")

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of this group's layers."""
        return InitConfig(EPS if self.layer_norm else None)


@dataclass(frozen=True)
class DenseConfig(Switched, DenseKeys):
    """Config keys of the hidden layers of an MLP."""


@dataclass(frozen=True)
class HiddenConfig(Switched, HiddenKeys):
    """Config keys of a network with one hidden layer."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 600)


@dataclass(frozen=True)
class RecurrentConfig(Switched, RecurrentKeys):
    """Config keys of the recurrent cell, and of the dense layer before it.

    The gates of the cell always have a LayerNorm; `layer_norm` adds one to the dense layer only.
    """

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 600)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 600)

    @property
    def cell(self) -> InitConfig:
        """Normalization and bias of the gates of the recurrent cell, which is a `dense.LayerNormGRU`."""
        return InitConfig(EPS)


@dataclass(frozen=True)
class ObservationConfig(Switched, ObservationKeys):
    """Config keys of an observation encoder or decoder: a CNN for images, an MLP for vectors."""

    cnn_channels_multiplier: int = other_default(ObservationKeys, "cnn_channels_multiplier", 48)
    cnn_act: str = other_default(ObservationKeys, "cnn_act", "elu")


@dataclass(frozen=True)
class DiscountConfig(Switched, DiscountKeys):
    """Config keys of the continue head, a network that predicts the discount at a model state.

    The training target is `gamma`, or 0 if the episode has terminated.
    """


@dataclass(frozen=True)
class WorldModelConfig(EndsKeys):
    """Config keys of the world model and its optimizer."""

    discrete_size: int = arg(32, "classes of a latent variable", low=2)
    kl_balancing_alpha: float = arg(
        0.8, "α of KL balancing: weight of the KL that trains the prior; 1 - α trains the posterior", low=0, high=1
    )
    kl_free_avg: bool = arg(True, "apply free nats to the mean KL of the batch; false = to the KL of each row")
    discount_scale_factor: float = arg(
        1.0, "weight of the continue loss", low=0, needs=Needs("use_continues", bool, "=true")
    )
    encoder: ObservationConfig = arg(ObservationConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: HiddenConfig = arg(HiddenConfig(), "prior")
    representation_model: HiddenConfig = arg(HiddenConfig(), "posterior")
    observation_model: ObservationConfig = arg(ObservationConfig(), "decoder of observations")
    reward_model: DenseConfig = arg(DenseConfig(), "reward head")
    discount_model: DiscountConfig = arg(DiscountConfig(), "continue head")
    optimizer: OptimizerConfig = arg(
        OptimizerConfig(lr=3e-4, eps=1e-5, weight_decay=DECAY), "optimizer of the world model"
    )


@dataclass(frozen=True)
class ActorConfig(Switched, ActorKeys):
    """Config keys of the actor and its optimizer."""

    ent_coef: float = arg(1e-4, "η: weight of the entropy bonus", low=0)
    objective_mix: float | None = arg(
        None,
        "ρ: weight of REINFORCE gradients; gradients through the model have the weight 1 - ρ; "
        "null = 1 for discrete actions, 0 for continuous actions",
        low=0,
        high=1,
    )
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=1e-5, weight_decay=DECAY), "optimizer of the actor")


@dataclass(frozen=True)
class CriticConfig(DenseConfig):
    """Config keys of the critic, its target critic and its optimizer."""

    per_rank_target_network_update_freq: int = arg(
        100, "gradient steps between copies of the critic to the target critic", low=1
    )
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=1e-5, weight_decay=DECAY), "optimizer of the critic")

    def target_tau(self, update: int) -> float:
        """Return τ of the target critic's update before gradient step number `update`.

        1 copies the critic to the target critic; 0 changes nothing.
        """
        return 0.0 if update % self.per_rank_target_network_update_freq else 1.0


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Config keys of Dreamer V2."""

    exported_components: ClassVar[Mapping[str, str]] = WORLD_PARTS | {"target_critic": "target_critic"}

    name: str = arg("dreamer_v2", "name of the algorithm", choices=("dreamer_v2",))
    replay_ratio: float = other_default(DreamerConfig, "replay_ratio", 0.2)
    per_rank_pretrain_steps: int = other_default(DreamerConfig, "per_rank_pretrain_steps", 100)
    horizon: int = arg(15, "imagination horizon, in steps", low=2)
    layer_norm: bool = arg(False, "default use of LayerNorm before activations")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    actor: ActorConfig = arg(ActorConfig(), "actor")
    critic: CriticConfig = arg(CriticConfig(), "critic")

    def update_rule(self, settings: OptimizerConfig) -> OptimizerConfig:
        """Return the optimizer settings, changed such that Adam's weight decay does not depend on the learning rate."""
        return settings.decayed_each_step()

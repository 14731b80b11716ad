"""The keys of Dreamer V2, under SheepRL's names; the defaults are SheepRL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer import DreamerConfig
from rlcore.config.schema import Needs, arg, other_default
from rlcore.nn.world_keys import (
    WORLD_PARTS,
    ActorKeys,
    DenseKeys,
    DiscountKeys,
    EndsKeys,
    Form,
    Group,
    HiddenKeys,
    ObservationKeys,
    RecurrentKeys,
)
from rlcore.optim.optimizer_keys import OptimizerConfig

EPS = 1e-3  # of every LayerNorm, as Keras has it
DECAY = 1e-6


@dataclass(frozen=True)
class Switched(Group):
    """LayerNorms that are there or not."""

    layer_norm: bool = arg(False, "LayerNorm before each activation")

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the group's layers."""
        return Form(EPS if self.layer_norm else None)


@dataclass(frozen=True)
class DenseConfig(Switched, DenseKeys):
    """Hidden layers of a perceptron."""


@dataclass(frozen=True)
class HiddenConfig(Switched, HiddenKeys):
    """One hidden layer."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 600)


@dataclass(frozen=True)
class RecurrentConfig(Switched, RecurrentKeys):
    """The recurrent state and the layer before its cell, whose gates always have a LayerNorm."""

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 600)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 600)

    @property
    def cell(self) -> Form:
        """Norm and bias of the gates of a `rlcore.nn.dense.LayerNormGRU`."""
        return Form(EPS)


@dataclass(frozen=True)
class ObservationConfig(Switched, ObservationKeys):
    """Networks of one side, encoder or decoder: of images in stages of convolutions, of vectors one perceptron."""

    cnn_channels_multiplier: int = other_default(ObservationKeys, "cnn_channels_multiplier", 48)
    cnn_act: str = other_default(ObservationKeys, "cnn_act", "elu")


@dataclass(frozen=True)
class DiscountConfig(Switched, DiscountKeys):
    """The head that says whether the episode goes on."""


@dataclass(frozen=True)
class WorldModelConfig(EndsKeys):
    """The world model and its optimizer."""

    discrete_size: int = arg(32, "classes of a latent variable", low=2)
    kl_balancing_alpha: float = arg(
        0.8, "α: share of the KL that trains the prior, the rest the posterior", low=0, high=1
    )
    kl_free_avg: bool = arg(True, "free nats are of the mean KL of all rows; false: of each row's")
    discount_scale_factor: float = arg(
        1.0, "weight of the loss of episodes' ends", low=0, needs=Needs("use_continues", bool, "=true")
    )
    encoder: ObservationConfig = arg(ObservationConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: HiddenConfig = arg(HiddenConfig(), "prior")
    representation_model: HiddenConfig = arg(HiddenConfig(), "posterior")
    observation_model: ObservationConfig = arg(ObservationConfig(), "decoder of observations")
    reward_model: DenseConfig = arg(DenseConfig(), "head of the reward")
    discount_model: DiscountConfig = arg(DiscountConfig(), "head of the episodes' ends")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4, eps=1e-5, weight_decay=DECAY), "its own")


@dataclass(frozen=True)
class ActorConfig(Switched, ActorKeys):
    """The actor and its optimizer."""

    ent_coef: float = arg(1e-4, "η: weight of the entropy bonus", low=0)
    objective_mix: float | None = arg(
        None,
        "ρ: share of REINFORCE in the objective, the rest through the model; null: discrete actions 1, continuous 0",
        low=0,
        high=1,
    )
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=1e-5, weight_decay=DECAY), "its own")


@dataclass(frozen=True)
class CriticConfig(DenseConfig):
    """The critic, its slow copy and its optimizer."""

    per_rank_target_network_update_freq: int = arg(100, "gradient steps from one copy of the critic to the next", low=1)
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=1e-5, weight_decay=DECAY), "its own")

    def target_tau(self, update: int) -> float:
        """Share of the way that the slow copy moves before a gradient step."""
        return 0.0 if update % self.per_rank_target_network_update_freq else 1.0


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Keys of Dreamer V2."""

    registers: ClassVar[Mapping[str, str]] = WORLD_PARTS | {"target_critic": "target_critic"}

    name: str = arg("dreamer_v2", "the algorithm", choices=("dreamer_v2",))
    replay_ratio: float = other_default(DreamerConfig, "replay_ratio", 0.2)
    per_rank_pretrain_steps: int = other_default(DreamerConfig, "per_rank_pretrain_steps", 100)
    horizon: int = arg(15, "H: imagined steps", low=2)
    layer_norm: bool = arg(False, "LayerNorm before activations, for the parts that do not say")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "the world model")
    actor: ActorConfig = arg(ActorConfig(), "the actor")
    critic: CriticConfig = arg(CriticConfig(), "the critic")

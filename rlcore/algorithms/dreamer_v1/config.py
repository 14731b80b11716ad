"""The keys of Dreamer V1, under SheepRL's names; the defaults are SheepRL's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer import DreamerConfig
from rlcore.config.schema import Needs, arg, other_default
from rlcore.nn.network_keys import ACTIVATIONS
from rlcore.nn.world_keys import ActorKeys, DenseKeys, DiscountKeys, EndsKeys, Layers, PolicyForm, RecurrentKeys
from rlcore.optim.optimizer_keys import OptimizerConfig

EPS = 1e-7  # of Adam, as TensorFlow has it


@dataclass(frozen=True)
class RecurrentConfig(RecurrentKeys):
    """The recurrent state and the layer before its cell, which has as many units."""

    dense_units: int = arg(400, "of SheepRL's files", unused="the layer has recurrent_state_size units")
    dense_act: str = arg("elu", "activation of that layer", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> Layers:
        """The layer before the cell."""
        return Layers(self.recurrent_state_size, 1, self.dense_act, self.form)


@dataclass(frozen=True)
class RewardConfig(DenseKeys):
    """The head of the reward."""

    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 2)


@dataclass(frozen=True)
class DiscountConfig(DiscountKeys):
    """The head that says whether the episode goes on."""

    mlp_layers: int = other_default(DiscountKeys, "mlp_layers", 3)


@dataclass(frozen=True)
class WorldModelConfig(EndsKeys):
    """The world model and its optimizer."""

    stochastic_size: int = other_default(EndsKeys, "stochastic_size", 30)
    kl_free_nats: float = arg(3.0, "mean KL of all rows below which it trains nothing, nats", low=0)
    min_std: float = arg(0.1, "added to the std of a latent", above=0)
    continue_scale_factor: float = arg(
        10.0, "weight of the loss of episodes' ends", low=0, needs=Needs("use_continues", bool, "=true")
    )
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    reward_model: RewardConfig = arg(RewardConfig(), "head of the reward")
    discount_model: DiscountConfig = arg(DiscountConfig(), "head of the episodes' ends")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=6e-4, eps=EPS), "its own")


@dataclass(frozen=True)
class ActorConfig(ActorKeys):
    """The actor and its optimizer."""

    min_std: float = other_default(ActorKeys, "min_std", 1e-4)
    init_std: float = arg(5.0, "std of a continuous action, before its tanh, where the network gives 0", above=0)
    expl_amount: float = other_default(ActorKeys, "expl_amount", 0.3)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=EPS), "its own")

    def policy(self, kind: str) -> PolicyForm:
        """Distribution of actions of that kind; of the squashed one the std is behind its softplus."""
        form, std = super().policy(kind), self.init_std
        return form._replace(init_std=std + math.log(-math.expm1(-std))) if kind == "tanh_normal" else form


@dataclass(frozen=True)
class CriticConfig(DenseKeys):
    """The critic, which has no slow copy, and its optimizer."""

    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 3)
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=EPS), "its own")

    def target_tau(self, update: int) -> None:
        """None: there is no slow copy that could move before a gradient step."""


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Keys of Dreamer V1."""

    continuous: ClassVar[tuple[str, ...]] = ("tanh_normal", "normal", "trunc_normal")

    name: str = arg("dreamer_v1", "the algorithm", choices=("dreamer_v1",))
    replay_ratio: float = other_default(DreamerConfig, "replay_ratio", 0.1)
    learning_starts: int = other_default(DreamerConfig, "learning_starts", 5000)
    per_rank_pretrain_steps: int = other_default(DreamerConfig, "per_rank_pretrain_steps", 100)
    per_rank_batch_size: int = other_default(DreamerConfig, "per_rank_batch_size", 50)
    horizon: int = arg(15, "H: imagined steps", low=2)
    cnn_act: str = other_default(DreamerConfig, "cnn_act", "relu")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "the world model")
    actor: ActorConfig = arg(ActorConfig(), "the actor")
    critic: CriticConfig = arg(CriticConfig(), "the critic")

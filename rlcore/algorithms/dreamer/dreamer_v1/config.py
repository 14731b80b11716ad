"""Config keys of Dreamer V1, with SheepRL's names and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.world_keys import (
    ActorKeys,
    DenseKeys,
    DiscountKeys,
    EndsKeys,
    MLPSpec,
    PolicySpec,
    RecurrentKeys,
)
from rlcore.config.schema import Needs, arg, other_default
from rlcore.nn.network_keys import ACTIVATIONS
from rlcore.optim.optimizer_keys import OptimizerConfig

EPS = 1e-7  # ε of Adam, as in TensorFlow


@dataclass(frozen=True)
class RecurrentConfig(RecurrentKeys):
    """Config keys of the recurrent cell, and of the dense layer before it. Both have `recurrent_state_size` units."""

    dense_units: int = arg(
        400, "units of the layer before the cell (SheepRL key)", unused="the layer has recurrent_state_size units"
    )
    dense_act: str = arg("elu", "activation of the layer before the cell", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> MLPSpec:
        """Settings of the dense layer before the recurrent cell."""
        return MLPSpec(self.recurrent_state_size, 1, self.dense_act, self.form)


@dataclass(frozen=True)
class RewardConfig(DenseKeys):
    """Config keys of the reward head, a network that predicts rewards from model states."""

    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 2)


@dataclass(frozen=True)
class DiscountConfig(DiscountKeys):
    """Config keys of the continue head, a network that predicts the discount at a model state.

    The training target is `gamma`, or 0 if the episode has terminated.
    """

    mlp_layers: int = other_default(DiscountKeys, "mlp_layers", 3)


@dataclass(frozen=True)
class WorldModelConfig(EndsKeys):
    """Config keys of the world model and its optimizer."""

    stochastic_size: int = other_default(EndsKeys, "stochastic_size", 30)
    kl_free_nats: float = arg(3.0, "free nats: the KL loss has no gradient if its batch mean is below this", low=0)
    min_std: float = arg(0.1, "added to the std of the stochastic state", above=0)
    continue_scale_factor: float = arg(
        10.0, "weight of the continue loss", low=0, needs=Needs("use_continues", bool, "=true")
    )
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    reward_model: RewardConfig = arg(RewardConfig(), "reward head")
    discount_model: DiscountConfig = arg(DiscountConfig(), "continue head")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=6e-4, eps=EPS), "optimizer of the world model")


@dataclass(frozen=True)
class ActorConfig(ActorKeys):
    """Config keys of the actor and its optimizer."""

    min_std: float = other_default(ActorKeys, "min_std", 1e-4)
    init_std: float = arg(5.0, "std of a continuous action before the tanh, if the network outputs 0", above=0)
    expl_amount: float = other_default(ActorKeys, "expl_amount", 0.3)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=EPS), "optimizer of the actor")

    def policy(self, kind: str) -> PolicySpec:
        """Return the settings of the policy distribution; `kind` is its name, such as "tanh_normal".

        For "tanh_normal", the actor computes the std before the tanh as
        softplus(network output + `PolicySpec.init_std`) + `min_std`. The config key `init_std` is the value of the
        softplus for a network output of 0, so `PolicySpec.init_std` is the inverse softplus of the config key.
        """
        form, std = super().policy(kind), self.init_std
        return form._replace(init_std=std + math.log(-math.expm1(-std))) if kind == "tanh_normal" else form


@dataclass(frozen=True)
class CriticConfig(DenseKeys):
    """Config keys of the critic and its optimizer. Dreamer V1 has no target critic."""

    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 3)
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=8e-5, eps=EPS), "optimizer of the critic")

    def target_tau(self, update: int) -> None:
        """Return None, because Dreamer V1 has no target critic."""


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Config keys of Dreamer V1."""

    continuous: ClassVar[tuple[str, ...]] = ("tanh_normal", "normal", "trunc_normal")

    name: str = arg("dreamer_v1", "name of the algorithm", choices=("dreamer_v1",))
    replay_ratio: float = other_default(DreamerConfig, "replay_ratio", 0.1)
    learning_starts: int = other_default(DreamerConfig, "learning_starts", 5000)
    per_rank_pretrain_steps: int = other_default(DreamerConfig, "per_rank_pretrain_steps", 100)
    per_rank_batch_size: int = other_default(DreamerConfig, "per_rank_batch_size", 50)
    horizon: int = arg(15, "imagination horizon, in steps", low=2)
    cnn_act: str = other_default(DreamerConfig, "cnn_act", "relu")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    actor: ActorConfig = arg(ActorConfig(), "actor")
    critic: CriticConfig = arg(CriticConfig(), "critic")

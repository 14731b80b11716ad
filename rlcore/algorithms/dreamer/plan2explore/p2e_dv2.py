"""Plan2Explore DV2: Planning to Explore via Self-Supervised World Models. Sekar et al. 2020, arXiv:2005.05960.

Config keys of both phases on Dreamer V2, with SheepRL's names and defaults. The learner is in `learner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rlcore.algorithms.dreamer.dreamer_v2 import config as dreamer_v2
from rlcore.algorithms.dreamer.plan2explore.config import (
    AMOUNTS,
    EXPLORATION_PARTS,
    MULTIPLIER,
    ONE_GOAL,
    PARTS,
    TARGET,
    EnsembleKeys,
    ExploringPlayer,
    FineTuningPlayer,
    Goals,
    exploration_metrics,
)
from rlcore.algorithms.dreamer.plan2explore.source import ExplorationSource
from rlcore.config.run import SourceRules
from rlcore.config.schema import arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig


@dataclass(frozen=True)
class EnsemblesConfig(dreamer_v2.DenseConfig, EnsembleKeys):
    """Config keys of the ensemble, which predicts the next stochastic state, and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4, eps=1e-5, weight_decay=1e-6), "optimizer of the ensemble")


@dataclass(frozen=True)
class RecurrentConfig(dreamer_v2.RecurrentConfig):
    """Config keys of the recurrent cell, and of the dense layer before it."""

    recurrent_state_size: int = other_default(dreamer_v2.RecurrentConfig, "recurrent_state_size", 400)
    dense_units: int = other_default(dreamer_v2.RecurrentConfig, "dense_units", 400)


@dataclass(frozen=True)
class HiddenConfig(dreamer_v2.HiddenConfig):
    """Config keys of a network with one hidden layer."""

    hidden_size: int = other_default(dreamer_v2.HiddenConfig, "hidden_size", 400)


@dataclass(frozen=True)
class WorldModelConfig(dreamer_v2.WorldModelConfig):
    """Config keys of the world model and its optimizer."""

    recurrent_model: RecurrentConfig = other_default(dreamer_v2.WorldModelConfig, "recurrent_model", RecurrentConfig())
    transition_model: HiddenConfig = other_default(dreamer_v2.WorldModelConfig, "transition_model", HiddenConfig())
    representation_model: HiddenConfig = other_default(
        dreamer_v2.WorldModelConfig, "representation_model", HiddenConfig()
    )


@dataclass(frozen=True, kw_only=True)
class Exploration(dreamer_v2.Config):
    """Config keys of the exploration phase on Dreamer V2."""

    amount_metrics: ClassVar[tuple[str, ...]] = AMOUNTS
    exported_components: ClassVar[Mapping[str, str]] = (
        EXPLORATION_PARTS | TARGET | {"target_critic_exploration": "target_critic_exploration"}
    )
    goals: ClassVar[Goals] = ONE_GOAL

    name: str = arg("p2e_dv2_exploration", "name of the algorithm", choices=("p2e_dv2_exploration",))
    intrinsic_reward_multiplier: float = arg(1.0, MULTIPLIER, above=0)
    player: ExploringPlayer = arg(ExploringPlayer(), "behavior policy")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models")

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        return exploration_metrics(super().metric_names(), self.goals)


@dataclass(frozen=True, kw_only=True)
class FineTuning(dreamer_v2.Config):
    """Config keys of the fine-tuning phase on Dreamer V2."""

    amount_metrics: ClassVar[tuple[str, ...]] = AMOUNTS
    exported_components: ClassVar[Mapping[str, str]] = PARTS | TARGET
    fine_tunes: ClassVar[SourceRules | None] = ExplorationSource("p2e_dv2_exploration")

    name: str = arg("p2e_dv2_finetuning", "name of the algorithm", choices=("p2e_dv2_finetuning",))
    learning_starts: int = other_default(dreamer_v2.Config, "learning_starts", 10_000)
    intrinsic_reward_multiplier: float = arg(1.0, MULTIPLIER, above=0)
    player: FineTuningPlayer = arg(FineTuningPlayer(), "behavior policy")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models (exploration phase)")

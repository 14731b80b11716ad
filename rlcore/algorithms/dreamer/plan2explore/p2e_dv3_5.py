"""Plan2Explore DV3.5: Planning to Explore via Self-Supervised World Models. Sekar et al. 2020, arXiv:2005.05960.

Config keys of both phases on Dreamer V3.5, which SheepRL does not have; names and defaults of the keys that
Plan2Explore adds are those of SheepRL's `p2e_dv3`. The learner is in `learner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlcore.algorithms.dreamer.dreamer_v3_5 import config as dreamer_v3_5
from rlcore.algorithms.dreamer.dreamer_v3_5.layer_keys import DenseConfig
from rlcore.algorithms.dreamer.plan2explore.config import (
    CRITIC_PARTS,
    CRITICS,
    CRITICS_HELP,
    MOMENTS,
    MULTIPLIER,
    PARTS,
    SHARED,
    TARGET,
    EnsembleKeys,
    ExploringPlayer,
    FineTuningPlayer,
    Goals,
    absent_parts,
    check_critics,
    exploration_metrics,
    goals_of,
)
from rlcore.algorithms.dreamer.plan2explore.source import ExplorationSource
from rlcore.config.run import SourceRules
from rlcore.config.schema import arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig


@dataclass(frozen=True)
class EnsemblesConfig(DenseConfig, EnsembleKeys):
    """Config keys of the ensemble, which predicts the next stochastic state, and its optimizer."""

    n: int = other_default(EnsembleKeys, "n", 8)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-4, eps=1e-5), "optimizer of the ensemble")


@dataclass(frozen=True, kw_only=True)
class Exploration(dreamer_v3_5.Config):
    """Config keys of the exploration phase on Dreamer V3.5."""

    exported_components: ClassVar[Mapping[str, str]] = PARTS | TARGET | MOMENTS | SHARED | CRITIC_PARTS

    name: str = arg("p2e_dv3_5_exploration", "name of the algorithm", choices=("p2e_dv3_5_exploration",))
    intrinsic_reward_multiplier: float = arg(1.0, MULTIPLIER, above=0)
    critics_exploration: dict[str, Any] = arg(CRITICS, CRITICS_HELP)
    player: ExploringPlayer = arg(ExploringPlayer(), "behavior policy")
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models")

    def check(self, prefix: str) -> None:
        """Raise UserError if values contradict each other, or if the critics of the exploration actor are invalid.

        `prefix` is the dotted path of this config group, with a dot at the end.
        """
        super().check(prefix)
        check_critics(self.critics_exploration, prefix)

    @property
    def goals(self) -> Goals:
        """Rewards of the exploration actor."""
        return goals_of(self.critics_exploration)

    @property
    def absent_components(self) -> frozenset[str]:
        """Names in `exported_components` of the components that a run with these settings does not have."""
        return absent_parts(self.critics_exploration)

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        return exploration_metrics(super().metric_names(), self.goals)


@dataclass(frozen=True, kw_only=True)
class FineTuning(dreamer_v3_5.Config):
    """Config keys of the fine-tuning phase on Dreamer V3.5."""

    exported_components: ClassVar[Mapping[str, str]] = PARTS | TARGET | MOMENTS
    fine_tunes: ClassVar[SourceRules | None] = ExplorationSource("p2e_dv3_5_exploration")

    name: str = arg("p2e_dv3_5_finetuning", "name of the algorithm", choices=("p2e_dv3_5_finetuning",))
    learning_starts: int = other_default(dreamer_v3_5.Config, "learning_starts", 16_384)
    intrinsic_reward_multiplier: float = arg(1.0, MULTIPLIER, above=0)
    critics_exploration: dict[str, Any] = arg(CRITICS, CRITICS_HELP)
    player: FineTuningPlayer = arg(FineTuningPlayer(), "behavior policy")
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models (exploration phase)")

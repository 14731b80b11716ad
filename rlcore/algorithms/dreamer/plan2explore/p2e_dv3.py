"""Plan2Explore DV3: Planning to Explore via Self-Supervised World Models. Sekar et al. 2020, arXiv:2005.05960.

Config keys of both phases on Dreamer V3, with SheepRL's names and defaults. The learner is in `learner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlcore.algorithms.dreamer.dreamer_v3 import config as dreamer_v3
from rlcore.algorithms.dreamer.dreamer_v3.layer_keys import DenseConfig
from rlcore.algorithms.dreamer.plan2explore.config import (
    INTRINSIC,
    PARTS,
    SHARED,
    TARGET,
    TASK,
    EnsembleKeys,
    ExplorationConfig,
    FineTuningConfig,
)
from rlcore.config.build import build
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import OptimizerConfig

NETWORKS = ("critic_exploration", "target_critic_exploration", "moments_exploration")
OF_TASK = PARTS | TARGET | {"moments_task": "moments"}
DEFAULT = {
    "intrinsic": {"weight": 0.1, "reward_type": INTRINSIC},
    "extrinsic": {"weight": 1.0, "reward_type": TASK},
}


@dataclass(frozen=True, kw_only=True)
class CriticsKeys:
    """Config keys of the critics of the exploration actor."""

    critics_exploration: dict[str, Any] = arg(
        DEFAULT,
        "critics of the exploration actor, name -> {weight, reward_type}: weight of its advantages (0 = no such "
        "critic), and intrinsic or task reward; the default includes the task's reward, exp=p2e_dv3_zero_shot does "
        "not (exploration phase)",
    )


@dataclass(frozen=True)
class ExplorationCritic:
    """Config keys of one critic of the exploration actor."""

    weight: float = arg(1.0, "weight of the advantages", low=0)
    reward_type: str = arg(INTRINSIC, "reward of the critic", choices=(INTRINSIC, TASK))


@dataclass(frozen=True)
class EnsemblesConfig(DenseConfig, EnsembleKeys):
    """Config keys of the ensemble, whose models predict the next stochastic state, and its optimizer."""

    n: int = other_default(EnsembleKeys, "n", 8)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-4, eps=1e-5), "optimizer of the ensemble")


@dataclass(frozen=True, kw_only=True)
class Exploration(dreamer_v3.Config, ExplorationConfig, CriticsKeys):
    """Config keys of the exploration phase on Dreamer V3."""

    exported_components: ClassVar[Mapping[str, str]] = (
        SHARED | OF_TASK | {f"{part}_{key}": f"{part}_{key}" for key in DEFAULT for part in NETWORKS}
    )

    name: str = arg("p2e_dv3_exploration", "name of the algorithm", choices=("p2e_dv3_exploration",))
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models")

    def check(self, prefix: str) -> None:
        """Raise UserError if the critics of the exploration actor are invalid, or if none has the intrinsic reward.

        `prefix` is the dotted path of this config group, with a dot at the end.
        """
        super().check(prefix)
        for name, keys in self.critics_exploration.items():
            build(ExplorationCritic, keys, f"{prefix}critics_exploration.{name}.")
        if all(kind != INTRINSIC for kind, _ in self.goals.values()):
            raise UserError(
                f"{prefix}critics_exploration: no critic has reward_type=intrinsic and a weight above 0, so the actor "
                f"would not explore; set {prefix}critics_exploration.intrinsic.weight above 0"
            )

    @property
    def absent_components(self) -> frozenset[str]:
        """Names in `exported_components` of the components that a run with these settings does not have."""
        return frozenset(f"{part}_{key}" for key in DEFAULT if key not in self.goals for part in NETWORKS)

    @property
    def goals(self) -> Mapping[str, tuple[str, float]]:
        """Rewards of the exploration actor: name of the critic -> kind of the reward, and weight (their sum is 1)."""
        made = {name: build(ExplorationCritic, keys) for name, keys in self.critics_exploration.items()}
        total = sum(critic.weight for critic in made.values())
        return {name: (each.reward_type, each.weight / total) for name, each in made.items() if each.weight > 0}


@dataclass(frozen=True, kw_only=True)
class FineTuning(dreamer_v3.Config, FineTuningConfig, CriticsKeys):
    """Config keys of the fine-tuning phase on Dreamer V3."""

    exported_components: ClassVar[Mapping[str, str]] = OF_TASK

    name: str = arg("p2e_dv3_finetuning", "name of the algorithm", choices=("p2e_dv3_finetuning",))
    learning_starts: int = other_default(dreamer_v3.Config, "learning_starts", 16_384)
    ensembles: EnsemblesConfig = arg(EnsemblesConfig(), "ensemble of one-step models (exploration phase)")

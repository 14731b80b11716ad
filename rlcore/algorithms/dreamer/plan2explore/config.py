"""Config keys that Plan2Explore adds to every Dreamer, with SheepRL's names and defaults.

The configs of the two phases are in one file for each Dreamer: `p2e_dv1.py`, `p2e_dv2.py`, `p2e_dv3.py` and
`p2e_dv3_5.py`. They are derived from the config of the Dreamer and have these keys in addition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.config.build import build
from rlcore.config.schema import arg
from rlcore.errors import UserError

INTRINSIC, TASK = "intrinsic", "task"  # kinds of rewards
Goals = Mapping[str, tuple[str, float]]  # name of a critic of the exploration actor -> kind of its reward, and weight
ONE_GOAL: Goals = {"": (INTRINSIC, 1.0)}

# Values of `exported_components`: name in the model registry -> path of the component in the learner's state.
PARTS = {"world_model": "agent.world", "actor_task": "agent.actor", "critic_task": "critic"}
TARGET = {"target_critic_task": "target_critic"}
MOMENTS = {"moments_task": "moments"}
SHARED = {"ensembles": "ensembles", "actor_exploration": "actor_exploration"}
EXPLORATION_PARTS = PARTS | SHARED | {"critic_exploration": "critic_exploration"}
NETWORKS = ("critic_exploration", "target_critic_exploration", "moments_exploration")  # of each exploration critic
AMOUNTS = ("Params/exploration_amount_task", "Params/exploration_amount_exploration")

MULTIPLIER = "factor of the disagreement in the intrinsic reward (exploration phase)"  # help text
PER_ACTOR = frozenset({"Loss/policy_loss", "Grads/actor", "Actor/entropy"})  # metrics that each actor has
PER_CRITIC = frozenset({"Loss/value_loss", "Loss/replay_value_loss", "Grads/critic"})  # metrics that each critic has
OF_TASK = frozenset({"Values/return", "Values/value"})  # metrics that only the behavior of the task has


@dataclass(frozen=True)
class EnsembleKeys:
    """Config keys of the ensemble that do not depend on the Dreamer."""

    n: int = arg(10, "number of models in the ensemble", low=2)
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)


@dataclass(frozen=True)
class ExploringPlayer:
    """Config keys of the behavior policy of the exploration phase."""

    actor_type: str = arg(
        "exploration",
        "actor that collects the data; in the fine-tuning phase, task is allowed too",
        choices=("exploration",),
    )


@dataclass(frozen=True)
class FineTuningPlayer:
    """Config keys of the behavior policy of the fine-tuning phase."""

    actor_type: str = arg(
        "exploration",
        "actor that collects data until learning starts; then the task actor does",
        choices=("exploration", "task"),
    )


def exploration_metrics(of_dreamer: Collection[str], goals: Goals) -> frozenset[str]:
    """Return the names of the metrics of the exploration phase.

    `of_dreamer` are the names that the Dreamer reports. `goals` are the rewards of the exploration actor.
    """
    metrics = frozenset(of_dreamer)
    actor, critic, task = (part & metrics for part in (PER_ACTOR, PER_CRITIC, OF_TASK))
    names = {f"{name}_task" for name in actor | critic | task} | {f"{name}_exploration" for name in actor}
    of_critics = [f"{name}_exploration" for name in critic]
    of_critics += ["Values_exploration/predicted_values", "Values_exploration/lambda_values"]
    for key, (kind, _) in goals.items():
        own = [*of_critics, "Rewards/intrinsic"] if kind == INTRINSIC else of_critics
        names |= {f"{name}_{key}" if key else name for name in own}
    return metrics - actor - critic - task | names | {"Loss/ensemble_loss", "Grads/ensemble"}


# Several critics of the exploration actor -----------------------------------------------------------------------------

CRITICS = {
    "intrinsic": {"weight": 0.1, "reward_type": INTRINSIC},
    "extrinsic": {"weight": 1.0, "reward_type": TASK},
}
CRITICS_HELP = (
    "critics of the exploration actor, name -> {weight, reward_type}: weight of its advantages (0 = no such "
    "critic), and intrinsic or task reward; the default includes the task's reward, exp=p2e_dv3_zero_shot does "
    "not (exploration phase)"
)
CRITIC_PARTS = {f"{part}_{key}": f"{part}_{key}" for key in CRITICS for part in NETWORKS}


@dataclass(frozen=True)
class ExplorationCritic:
    """Config keys of one critic of the exploration actor."""

    weight: float = arg(1.0, "weight of the advantages", low=0)
    reward_type: str = arg(INTRINSIC, "reward of the critic", choices=(INTRINSIC, TASK))


def goals_of(critics: Mapping[str, Any]) -> Goals:
    """Return the rewards of the exploration actor from the value of `critics_exploration`; their weights sum to 1."""
    made: dict[str, ExplorationCritic] = {name: build(ExplorationCritic, keys) for name, keys in critics.items()}
    total = sum(critic.weight for critic in made.values())
    return {name: (each.reward_type, each.weight / total) for name, each in made.items() if each.weight > 0}


def check_critics(critics: Mapping[str, Any], prefix: str) -> None:
    """Raise UserError if the value of `critics_exploration` is invalid, or if no critic has the intrinsic reward.

    `prefix` is the dotted path of the algorithm's config group, with a dot at the end.
    """
    for name, keys in critics.items():
        if not name or "." in name:
            raise UserError(f"{prefix}critics_exploration: the name {name!r} of a critic must be a word without dots")
        build(ExplorationCritic, keys, f"{prefix}critics_exploration.{name}.")
    if all(kind != INTRINSIC for kind, _ in goals_of(critics).values()):
        raise UserError(
            f"{prefix}critics_exploration: no critic has reward_type=intrinsic and a weight above 0, so the actor "
            f"would not explore; set {prefix}critics_exploration.intrinsic.weight above 0"
        )


def absent_parts(critics: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in `CRITIC_PARTS` of critics that are not trained: with weight 0, or not listed."""
    return frozenset(f"{part}_{key}" for key in CRITICS if key not in goals_of(critics) for part in NETWORKS)

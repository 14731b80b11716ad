"""Config keys that Plan2Explore adds to every Dreamer, with SheepRL's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rlcore.algorithms.dreamer.config import DreamerConfig, TrainedGroup
from rlcore.config.schema import arg, arguments
from rlcore.config.values import at, plain, spell
from rlcore.errors import UserError

if TYPE_CHECKING:
    from rlcore.algorithms.dreamer.world_keys import MLPSpec
    from rlcore.spec import EnvSpec

INTRINSIC, TASK = "intrinsic", "task"  # kinds of rewards
# Values of `exported_components`: name in the model registry -> path of the component in the learner's state.
PARTS = {"world_model": "agent.world", "actor_task": "agent.actor", "critic_task": "critic"}
TARGET = {"target_critic_task": "target_critic"}
SHARED = {"ensembles": "ensembles", "actor_exploration": "actor_exploration"}
EXPLORATION_PARTS = PARTS | SHARED | {"critic_exploration": "critic_exploration"}
AMOUNTS = ("Params/exploration_amount_task", "Params/exploration_amount_exploration")


class EnsembleGroup(TrainedGroup, Protocol):
    """Config keys of the ensemble and its optimizer."""

    @property
    def n(self) -> int:
        """Number of models."""
        ...

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        ...


@dataclass(frozen=True)
class EnsembleKeys:
    """Config keys of the ensemble that do not depend on the Dreamer."""

    n: int = arg(10, "number of models in the ensemble", low=2)
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)


@dataclass(frozen=True)
class ExploringPlayer:
    """Config keys of the behavior policy of the exploration phase."""

    actor_type: str = arg("exploration", "actor that collects the data", choices=("exploration",))


@dataclass(frozen=True)
class FineTuningPlayer:
    """Config keys of the behavior policy of the fine-tuning phase."""

    actor_type: str = arg(
        "exploration",
        "actor that collects data until learning starts; then the task actor does",
        choices=("exploration", "task"),
    )


@dataclass(frozen=True, kw_only=True)
class Plan2ExploreConfig(DreamerConfig):
    """Base class of the configs of both phases; a derived class of a Dreamer adds `ensembles`."""

    amount_metrics: ClassVar[tuple[str, ...]] = AMOUNTS

    intrinsic_reward_multiplier: float = arg(
        1.0, "factor of the disagreement in the intrinsic reward (exploration phase)", above=0
    )

    if TYPE_CHECKING:  # a group that the config of each Dreamer defines, with defaults of its own
        ensembles: EnsembleGroup

    @property
    def goals(self) -> Mapping[str, tuple[str, float]]:
        """Rewards of the exploration actor: name of the critic -> kind of the reward, and weight (their sum is 1)."""
        return {"": (INTRINSIC, 1.0)}


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig(Plan2ExploreConfig):
    """Config keys of the exploration phase."""

    player: ExploringPlayer = arg(ExploringPlayer(), "behavior policy")

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        both = {"Loss/policy_loss", "Loss/value_loss", "Grads/actor", "Grads/critic"}
        names = {f"{name}_task" for name in both} | {"Loss/policy_loss_exploration", "Grads/actor_exploration"}
        of_critics = ("Loss/value_loss_exploration", "Grads/critic_exploration")
        of_critics += ("Values_exploration/predicted_values", "Values_exploration/lambda_values")
        for critic, (kind, _) in self.goals.items():
            own = (*of_critics, "Rewards/intrinsic") if kind == INTRINSIC else of_critics
            names |= {f"{name}_{critic}" if critic else name for name in own}
        return super().metric_names() - both | names | {"Loss/ensemble_loss", "Grads/ensemble"}


# Last parts of the keys that change the networks of world model, actor or critic.
NETWORK_KEYS = frozenset(
    {
        "bins",
        "cls",
        "cnn_act",
        "cnn_channels_multiplier",
        "decoder",
        "decoupled_rssm",
        "dense_act",
        "dense_units",
        "discrete_size",
        "encoder",
        "hidden_size",
        "layer_norm",
        "learnable_initial_recurrent_state",
        "mlp_layers",
        "normalize_actions",
        "recurrent_state_size",
        "spacing",
        "stochastic_size",
        "use_continues",
    }
)


def _sets_networks(key: str) -> bool:
    """Return True if a key determines the form of the networks that are loaded."""
    group, _, last = key.rpartition(".")
    of_networks = group.startswith(("world_model", "actor", "critic", "mlp_keys", "cnn_keys"))
    return last in NETWORK_KEYS and (of_networks or last == "normalize_actions")


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(Plan2ExploreConfig):
    """Config keys of the fine-tuning phase."""

    fine_tunes: ClassVar[bool] = True

    player: FineTuningPlayer = arg(FineTuningPlayer(), "behavior policy")

    def check_source(self, algo: Mapping[str, Any], theirs: EnvSpec, spec: EnvSpec) -> None:
        """Raise UserError if the source is not a run with the same environment, keys and sizes; name all differences.

        Args:
            algo: group `algo` of the other run's config, as nested dicts.
            theirs: environment of the other run.
            spec: environment of this run.
        """
        allowed = (self.name.replace("finetuning", "exploration"), self.name)
        found = [] if theirs.id == spec.id else [f"env.id={theirs.id} (here {spec.id})"]
        if algo.get("name") not in allowed:
            found.insert(0, f"algo.name={algo.get('name')} (needed: {allowed[0]})")
        else:
            found += [text for key, text in self._differences(algo) if _sets_networks(key)]
        if found:
            raise UserError(f"its run does not fit this run: {', '.join(found)}; set these keys as in that run")

    def list_changes(self, algo: Mapping[str, Any]) -> list[str]:
        """Return a notice about keys that differ from those of the exploration run and do not change the networks.

        `algo` is the group `algo` of that run's config, as nested dicts.
        """
        of_phase = (
            "name",
            "total_steps",
            "learning_starts",
            "player.",
            "ensembles.",
            "critics_exploration",
            "intrinsic_reward",
        )
        others = [text for key, text in self._differences(algo) if not key.startswith(of_phase)]
        return [f"the exploration run had other values: {', '.join(others)}"] if others else []

    def _differences(self, algo: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the keys whose values differ from those in `algo`, with a text that has both values."""
        mine, keys = plain(self), [argument.key for argument in arguments(type(self))]
        pairs = [(key, at(algo, key), at(mine, key)) for key in keys]
        return [(key, f"algo.{key}={spell(old)} (here {spell(new)})") for key, old, new in pairs if old != new]

    def random_steps(self, width: int) -> int:
        """Return 0, because no action is random: the actors of the exploration run act from the first step."""
        return 0

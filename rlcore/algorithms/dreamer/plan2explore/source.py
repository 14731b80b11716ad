"""Exploration run from which a fine-tuning run starts: which runs fit, and which differences are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.config.schema import arguments
from rlcore.config.values import at, plain, spell
from rlcore.errors import UserError

if TYPE_CHECKING:
    from rlcore.config.groups import EnvConfig
    from rlcore.config.run import AlgorithmConfig, RunConfig
    from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

# Last parts of the keys that change the networks of world model, actor or critic.
NETWORK_KEYS = frozenset(
    {
        "bins",
        "block_space",
        "blocks",
        "cls",
        "cnn_act",
        "cnn_channels_multiplier",
        "cnn_kernel_size",
        "cnn_stages",
        "decoder",
        "decoupled_rssm",
        "dense_act",
        "dense_units",
        "discrete_size",
        "dynamics_layers",
        "encoder",
        "hidden_size",
        "layer_norm",
        "layers",
        "learnable_initial_recurrent_state",
        "mlp_layers",
        "normalize_actions",
        "recurrent_state_size",
        "spacing",
        "stochastic_size",
        "use_continues",
    }
)
# Starts of the keys that depend on the phase, have no effect in fine-tuning, or do not change what is learned.
PHASE_KEYS = (
    "compile",
    "run_test",
    "name",
    "total_steps",
    "learning_starts",
    "player.",
    "ensembles.",
    "critics_exploration",
    "intrinsic_reward",
)
# Keys of the environment that `check` compares, or that do not change what a world model reads.
OTHER_ENV_KEYS = frozenset({"id", "num_envs", "frame_stack", "frame_stack_dilation"})

ACTOR = "actor_exploration"  # component of the learner


@dataclass(frozen=True)
class ExplorationSource:
    """Rules for the run from which a fine-tuning run starts; an implementation of `SourceRules`.

    Attributes:
        algorithm: name of the algorithm of the exploration run.
    """

    algorithm: str

    def check(
        self,
        config: AlgorithmConfig,
        algo: Mapping[str, object],
        theirs: EnvSpec,
        spec: EnvSpec,
        components: Collection[str],
    ) -> None:
        """Raise UserError if the source is not a run with the same environment, keys and sizes; name all differences.

        The arguments are those of `SourceRules.check`.
        """
        found = list[str]()
        if algo.get("name") not in (self.algorithm, config.name):
            found.append(f"algo.name={algo.get('name')} (needed: {self.algorithm})")
        found += _other_environment(config, theirs, spec)
        found += [text for key, text in _differences(config, algo) if _sets_networks(key)]
        if found:
            raise UserError(f"its run does not fit this run: {', '.join(found)}; set these keys as in that run")
        if ACTOR not in components and at(plain(config), "player.actor_type") == "exploration":
            raise UserError(
                "contains no exploration actor, which collects data until learning starts; use the exploration run or "
                "one of its checkpoints, or set algo.player.actor_type=task"
            )

    def list_changes(self, config: RunConfig, algo: Mapping[str, object], env: Mapping[str, object]) -> list[str]:
        """Return a notice about keys that differ from those of the exploration run and do not change the networks.

        The arguments are those of `SourceRules.list_changes`.
        """
        others = [text for key, text in _differences(config.algo, algo) if not key.startswith(PHASE_KEYS)]
        others += [text for key, text in _differences(config.env, env, "env.") if key not in OTHER_ENV_KEYS]
        return [f"the exploration run had other values: {', '.join(others)}"] if others else []


def _other_environment(config: AlgorithmConfig, theirs: EnvSpec, spec: EnvSpec) -> Iterator[str]:
    """Yield the differences between two environments: their ids, the observations that are read, and their actions."""
    if theirs.id != spec.id:
        yield f"env.id={theirs.id} (here {spec.id})"
    read = [key for group in ("mlp_keys", "cnn_keys") for key in at(plain(config), f"{group}.encoder")]
    for key in (*read, *(spec.mask_keys if config.obeys_masks else ())):
        one, other = (_without_window(each.obs.get(key)) for each in (theirs, spec))
        if one != other:
            yield f"observation {key}: {_describe(one)} (here {_describe(other)})"
    if theirs.action != spec.action:
        yield f"action: {_describe_action(theirs.action)} (here {_describe_action(spec.action)})"


def _without_window(part: ArraySpec | None) -> ArraySpec | None:
    return part and replace(part, window=None)  # a world model reads only the newest frame


def _describe(part: ArraySpec | None) -> str:
    if part is None:
        return "absent"
    values = f", {part.n} values from {part.start}" if part.n is not None else ""
    return f"{part.kind} of {part.dtype}, {list(part.shape)}{values}"


def _describe_action(action: ActionSpec) -> str:
    if action.continuous:
        return f"Box {list(action.shape)} from {list(action.low)} to {list(action.high)}"
    return f"{action.space} of {list(action.nvec)} choices from {list(action.start)}"


def _differences(
    config: AlgorithmConfig | EnvConfig, theirs: Mapping[str, object], prefix: str = "algo."
) -> list[tuple[str, str]]:
    """Return the keys that affect learning and have other values than in `theirs`, with a text that has both values.

    Keys that `theirs` does not have are left out. `prefix` is the dotted key of the group with a dot at its end.
    """
    absent, mine = object(), plain(config)
    keys = [argument.key for argument in arguments(type(config)) if argument.learning]
    pairs = [(key, at(theirs, key, absent), at(mine, key)) for key in keys]
    return [
        (key, f"{prefix}{key}={spell(old)} (here {spell(new)})")
        for key, old, new in pairs
        if old is not absent and old != new
    ]


def _sets_networks(key: str) -> bool:
    """Return True if a key determines the form of the networks that are loaded."""
    group, _, last = key.rpartition(".")
    of_networks = group.startswith(("world_model", "actor", "critic", "mlp_keys", "cnn_keys"))
    return last in NETWORK_KEYS and (of_networks or last == "normalize_actions")

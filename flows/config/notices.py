"""What a user should know of a checked config before it is trained: what of it has no effect, and what is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flows.config.overrides import IGNORED_HYDRA_KEYS
from flows.config.sheeprl_names import LOGGER_KEYS_DROPPED
from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments, at, defaults, plain, spell


def notices(config: RunConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Sentences to say once, when a run begins.

    Args:
        config: the checked config.
        overrides: as typed; some keys of SheepRL's commands are taken and never reach the config.

    Returns:
        One sentence each; most runs have none.
    """
    return [*_cut(config), *without_effect(config), *_dropped(overrides)]


def without_effect(config: RunConfig) -> list[str]:
    """Keys that are set to other than their default and have no effect today, a sentence for each reason."""
    values, usual = plain(config), defaults(RunConfig) | {"algo": defaults(type(config.algo))}
    found: dict[str, list[str]] = {}
    for argument in (*arguments(RunConfig), *arguments(type(config.algo), "algo.")):
        value = at(values, argument.key)
        if argument.unused and value != at(usual, argument.key):
            found.setdefault(argument.unused, []).append(f"{argument.key}={spell(value)}")
    return [f"{', '.join(keys)}: no effect ({reason})" for reason, keys in found.items()]


def _cut(config: RunConfig) -> Iterable[str]:
    size, rows = config.algo.per_rank_batch_size, config.env.num_envs * config.algo.rollout_steps
    if size > rows:
        yield (
            f"algo.per_rank_batch_size={size}: cut to {rows}, the steps of one rollout "
            f"(env.num_envs={config.env.num_envs} × algo.rollout_steps={config.algo.rollout_steps})"
        )


def _dropped(overrides: Iterable[str]) -> Iterable[str]:
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if key.startswith(IGNORED_HYDRA_KEYS):
            yield f"{override}: no effect (Hydra only composes the config here; run_dir says where a run lies)"
        if key.removeprefix("metric.logger.") in LOGGER_KEYS_DROPPED and key.startswith("metric.logger."):
            yield f"{override}: no effect (loggers mirror the run's event log; run_dir and run_name name its folder)"

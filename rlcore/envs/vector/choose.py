"""Creation of the vectorized environment that a config describes, and the seeds of its episodes."""

from __future__ import annotations

from typing import Any

from rlcore import streams
from rlcore.config.groups import EnvConfig
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.episodic import EpisodeSeed, EpisodicVectorEnv
from rlcore.envs.vector.native import NativeVectorEnv, is_faster, refuse
from rlcore.envs.vector.serial import SerialVectorEnv
from rlcore.envs.vector.subprocess import SubprocessVectorEnv
from rlcore.envs.vector.watchdog import step_limit
from rlcore.errors import UserError
from rlcore.protocols import VectorEnv


def make_vector_env(
    config: EnvConfig | EnvSettings,
    *,
    num_envs: int,
    seed: int,
    rank: int = 0,
    purpose: str = "env",
    tier: str = "snapshot",
    fresh_instance: bool = False,
    offset: int = 0,
    episode_seed: EpisodeSeed | None = None,
) -> EpisodicVectorEnv:
    """Create B environments that are stepped together.

    The environments run one after another in this process, or each in a separate process (`env.sync_env=false`), or as
    one vectorized computation in this process (`env.vectorization`).

    Args:
        config: config group `env`, or `EnvSettings` created from it. With `EnvSettings`, the environments run one after
            another in this process.
        num_envs: B.
        seed: seed of the run, from which the seeds of the environments are derived.
        rank: rank of this process in distributed training; each rank gets other seeds.
        purpose: random stream from which the seeds are derived, a key of `rlcore.streams.PURPOSES`.
        tier: method by which unfinished episodes are saved: "snapshot", "replay" or "boundary" (see
            `rlcore.envs.vector.episodic.TIERS`). With "snapshot", each environment gets one seed at its first reset and
            then continues its random generator. With the other tiers, each episode gets a seed.
        fresh_instance: if True, a new environment is built for every episode.
        offset: number that is added to the index of an environment when its seed is derived.
        episode_seed: function (env index, episode index) -> seed. If given, it is used instead of the seeds derived
            from `seed`, `rank`, `purpose` and `offset`.

    Returns:
        The vectorized environment, not yet reset.

    Raises:
        UserError: The environment cannot be created, or it does not support the requested vectorization.
    """
    settings = EnvSettings.of(config)
    seeds = episode_seed or stream_seeds(seed, purpose, rank, offset, tier)
    check_vector_env(config)
    if not isinstance(config, EnvSettings) and (
        config.vectorization == "native" or (config.vectorization == "auto" and is_faster(config, num_envs))
    ):
        return NativeVectorEnv(settings, num_envs, seeds)
    limit = step_limit(config)
    if isinstance(config, EnvSettings) or config.sync_env:
        return SerialVectorEnv(lambda: make(settings), num_envs, seeds, tier, fresh_instance, limit, settings.restart)
    return SubprocessVectorEnv(settings, num_envs, seeds, tier, fresh_instance, limit)


def check_vector_env(config: EnvConfig | EnvSettings) -> None:
    """Raise UserError if the environment or its settings do not support the requested vectorization."""
    if not isinstance(config, EnvSettings) and config.vectorization == "native":
        refuse(config)


def stream_seeds(seed: int, purpose: str, rank: int, offset: int, tier: str) -> EpisodeSeed:
    """Return a function (env index, episode index) -> seed for the environments of a run.

    If `tier`, the method by which unfinished episodes are saved, is "snapshot", the function returns a seed for the
    first episode of an environment, and None for later episodes, which continue the environment's random generator.
    With other tiers, it returns a seed for every episode. For the other arguments, see `make_vector_env`.
    """

    def episode_seed(env_index: int, episode_index: int) -> int | None:
        if tier != "snapshot":
            return streams.integer(seed, purpose, rank, offset + env_index, episode_index)
        return streams.integer(seed, purpose, rank, offset + env_index) if episode_index == 0 else None

    return episode_seed


def refuse_foreign_vector(envs: Any) -> None:
    """Raise UserError if `envs` does not implement the protocol `rlcore.protocols.VectorEnv`.

    For example, Gymnasium's vectorized environments do not implement it.
    """
    names = [*VectorEnv.__annotations__, *(name for name in vars(VectorEnv) if not name.startswith("_"))]
    if missing := [name for name in names if not hasattr(envs, name)]:
        raise UserError(
            f"envs is a {type(envs).__name__} without {', '.join(missing)}, which rlcore.protocols.VectorEnv requires; "
            "to use an environment of Gymnasium, select it in the config (env.id, env.num_envs) and omit the argument "
            "envs"
        )

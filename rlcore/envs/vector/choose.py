"""Creation of the B environments that a config asks for, and the seeds of their episodes."""

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

    They run in this process, in one process each (`env.sync_env=false`), or as one vectorized computation
    (`env.vectorization`).

    Args:
        config: the env group, or settings from it; with settings, the environments run in this process.
        num_envs: B.
        seed: seed of the run.
        rank: rank of this process in distributed training.
        purpose: random stream of the seeds, a key of `rlcore.streams.PURPOSES`.
        tier: method of exact resume, from the environment card: "snapshot", "replay" or "boundary". With "snapshot",
            each environment gets one seed for the whole run; with the others, each episode gets its own seed.
        fresh_instance: from the environment card; if True, a new environment is built for every episode.
        offset: index of the first environment in the random stream.
        episode_seed: function (env index, episode index) -> seed, used instead of the seeds above.

    Returns:
        The environments, not yet reset.

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
    """Return the function that gives the seeds of a run's environments, (env index, episode index) -> seed.

    With the tier "snapshot" (method of exact resume), each environment gets one seed; otherwise each episode gets one.
    """

    def episode_seed(env_index: int, episode_index: int) -> int | None:
        if tier != "snapshot":
            return streams.integer(seed, purpose, rank, offset + env_index, episode_index)
        return streams.integer(seed, purpose, rank, offset + env_index) if episode_index == 0 else None

    return episode_seed


def refuse_foreign_vector(envs: Any) -> None:
    """Raise UserError if `envs` does not implement this project's `VectorEnv`, for example a Gymnasium vector env."""
    names = [*VectorEnv.__annotations__, *(name for name in vars(VectorEnv) if not name.startswith("_"))]
    if missing := [name for name in names if not hasattr(envs, name)]:
        raise UserError(
            f"envs is a {type(envs).__name__} without {', '.join(missing)}, which rlcore.protocols.VectorEnv requires; "
            "to use an environment of Gymnasium, name it in the config (env.id, env.num_envs) and omit envs"
        )

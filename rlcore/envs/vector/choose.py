"""Creation of the vectorized environment that a config describes, and the seeds of its episodes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.envs.batched.parameters import parse
from rlcore.envs.make import EnvSettings, make, suite_for
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.batched import refuse_too_many
from rlcore.envs.suites.suite import BatchedFactory, check_arguments
from rlcore.envs.vector.native import NativeVectorEnv, added_wrappers, is_faster, refuse
from rlcore.envs.vector.serial import SerialVectorEnv
from rlcore.envs.vector.subprocess import SubprocessVectorEnv
from rlcore.envs.vector.watchdog import step_limit
from rlcore.envs.wrappers import FlatDictObservation, VectorAction, layers, time_limit
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
    seeds: EpisodeSeeds | None = None,
    device: Any = "cpu",
    rollout_steps: int | None = None,
) -> Any:
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
        seeds: seeds of the episodes. If given, they are used instead of those derived from `seed`, `rank`, `purpose`
            and `offset`.
        device: device of the agent, on which a batched environment computes; other environments ignore it.
        rollout_steps: T, steps of a rollout. Endless environments of training are reset after every
            `env.horizons_per_env_reset` rollouts. None: they are reset after `max_episode_steps` steps.

    Returns:
        The vectorized environment, not yet reset.

    Raises:
        UserError: The environment cannot be created, or it does not support the requested vectorization.
    """
    settings = EnvSettings.of(config)
    seeds = seeds or EpisodeSeeds(seed, purpose, (rank,), offset, first_only=tier == "snapshot")
    check_vector_env(config)
    suite, env_id = suite_for(settings)
    batched = suite.batched(env_id, check_arguments(suite, env_id, settings.wrapper))
    if batched is not None:
        resets = 1 if isinstance(config, EnvSettings) else config.horizons_per_env_reset
        return _batched(settings, batched, num_envs, seeds, device, rollout_steps and resets * rollout_steps)
    if not isinstance(config, EnvSettings) and (
        config.vectorization == "native" or (config.vectorization == "auto" and is_faster(config, num_envs))
    ):
        return NativeVectorEnv(settings, num_envs, seeds)
    limit, keys = step_limit(config), () if isinstance(config, EnvSettings) else config.info_keys
    if isinstance(config, EnvSettings) or config.sync_env:
        return SerialVectorEnv(
            lambda: make(settings), num_envs, seeds, tier, fresh_instance, limit, settings.restart, keys
        )
    return SubprocessVectorEnv(settings, num_envs, seeds, tier, fresh_instance, limit, keys)


def check_vector_env(config: EnvConfig | EnvSettings) -> None:
    """Raise UserError if the environment or its settings do not support the requested vectorization."""
    if not isinstance(config, EnvSettings) and config.vectorization == "native":
        refuse(config)


def _batched(
    settings: EnvSettings,
    create: BatchedFactory,
    num_envs: int,
    seeds: EpisodeSeeds,
    device: Any,
    horizon: int | None,
) -> VectorEnv:
    """Create a vectorized environment of a batched environment.

    `horizon` is the number of steps after which endless environments are reset. A negative number means that they are
    not reset; None means that they are reset after `max_episode_steps` steps.
    """
    from rlcore.envs.batched.self_resetting import SelfResettingVectorEnv  # worker processes do not need torch
    from rlcore.envs.batched.vector import BatchedVectorEnv

    with closing(make(settings)) as one:
        if wrappers := [name for name in added_wrappers(one) if name != VectorAction.__name__]:
            raise UserError(
                f"env.id={settings.id}: {wrappers[0]} changes single environments and cannot be combined with a "
                "batched environment; remove the key of env that adds it, and compute it in the environment"
            )
        spec, limit = spec_of(one), time_limit(one)
        view: Any = one.unwrapped
        (flat,) = (layer for layer in layers(one) if isinstance(layer, FlatDictObservation))
    starts_itself = view.env.tier == "boundary"
    own_limit = {"max_episode_steps": limit} if starts_itself and limit != view.env.max_episode_steps else {}
    env = create(num_envs, device, **own_limit)
    refuse_too_many(env.max_num_envs, f"env.id={settings.id}", num_envs)
    if view.endless and horizon is not None:
        limit = horizon if horizon > 0 else None
    kind = SelfResettingVectorEnv if starts_itself else BatchedVectorEnv
    return kind(env, spec, seeds, limit, flat.paths, view.parameters, view.endless)


def check_batched_options(run: RunConfig) -> None:
    """Raise UserError if the environment does not support the values of the keys that batched environments have.

    These are `env.config`, `env.endless`, `env.horizons_per_env_reset`, `env.info_keys`, `env.num_envs` and
    `evaluation.env_config`.
    """
    config, evaluation = run.env, run.evaluation.env_config
    suite, env_id = suite_for(config)
    batched = suite.batched(env_id, check_arguments(suite, env_id, config.wrapper))
    resets = config.horizons_per_env_reset
    if batched is None:
        if evaluation:
            raise UserError(
                f"evaluation.env_config.{next(iter(evaluation))}: has no effect because {env_id} is not a batched "
                "environment; remove the key"
            )
        if resets != 1:
            raise UserError(f"env.horizons_per_env_reset={resets}: has no effect because {env_id} is not endless")
        return
    if config.info_keys:
        raise UserError(
            f"env.info_keys=[{','.join(config.info_keys)}]: {env_id} is a batched environment, which has no info; "
            "remove the key"
        )
    with closing(make(config)) as one:
        view: Any = one.unwrapped
        limit = time_limit(one)
    refuse_too_many(view.env.max_num_envs, suite.place(env_id), config.num_envs)
    parse(view.env.Config, evaluation, "evaluation.env_config", env_id, view.env.tier == "boundary")
    if not view.endless and resets != 1:
        raise UserError(
            f"env.horizons_per_env_reset={resets}: has no effect because the episodes of {env_id} have an end; set "
            "env.endless=true, or leave env.horizons_per_env_reset out"
        )
    steps = run.algo.collect_length
    if view.endless and limit is not None and resets * steps > limit:
        raise UserError(
            f"env.horizons_per_env_reset={resets}: {resets} rollouts of {steps} steps are longer than the limit of "
            f"{limit} steps of {env_id} (max_episode_steps); use at most {limit} steps between two resets, or a "
            "negative number for no resets"
        )
    if view.endless and resets * steps == 1:
        raise UserError(
            f"env.horizons_per_env_reset=1: {run.algo.name} collects 1 step per rollout, so that {env_id} would be "
            "reset after every step; set env.horizons_per_env_reset to the number of steps between two resets"
        )


def refuse_foreign_vector(envs: Any) -> None:
    """Raise UserError if `envs` is not a `VectorEnv`, for example because it is an environment of Gymnasium."""
    if not isinstance(envs, VectorEnv):
        raise UserError(
            f"envs is a {type(envs).__name__}, which is not a subclass of rlcore.protocols.VectorEnv; to use an "
            "environment of Gymnasium, select it in the config (env.id, env.num_envs) and omit the argument envs"
        )

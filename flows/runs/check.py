"""Refusals before anything is made: a config that cannot run here."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry.models import check_models, resolve_uri
from flows.settings import tracking_uri
from flows.tracking.mlflow_store import check_address
from rlcore.compiled.when_to_compile import check_compiler
from rlcore.config.schema import groups
from rlcore.config.values import at
from rlcore.errors import EnvironmentFault, Mistakes, UserError
from rlcore.nn.network_keys import kind_of
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.store.directory import RunDirectory
from rlcore.train.device import check_device
from rlcore.train.resource_check import check_resources
from rlcore.user_code import user_code

if TYPE_CHECKING:
    from rlcore.config.groups import BufferConfig, RunConfig
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.spec import EnvSpec


@user_code()
def prepare(
    config: RunConfig, values: Mapping[str, Any], here: bool = True
) -> tuple[RunConfig, Mapping[str, Any], dict[str, Any] | None]:
    """Refuse in seconds what cannot run, and find what the run starts from; nothing is written.

    Refused are an unknown environment, keys it lacks, an action no policy fits, no device, more than this machine has
    room for, a dataset, weights or a checkpoint that do not fit, and what would fail at the very end, a name that no
    model can have. The `UserError` names key and fix. Given back are config and values with `init_from`, which may be a
    models:/ URI, as a local folder, and what is kept of where the weights come from, for `create_run`. Where it is not
    to be trained `here`, no device and no room are looked for.
    """
    mistakes, spec = Mistakes(), None
    with mistakes.catch():
        spec = _spec(config)
    with mistakes.catch():
        if here:
            check_device(config.fabric)
    with mistakes.catch():
        check_compiler(config)
    with mistakes.catch():
        _check_model(config)
    mistakes.raise_collected()
    assert spec is not None  # else there was a mistake
    if here:
        check_resources(config, spec, Path(config.run_dir))
        _check_memmap_folder(config.buffer)
    places = groups(type(config.algo), OptimizerConfig)
    if any(at(values, f"algo.{place}.groups") for place in places):
        from rlcore.train.counting import check_groups  # torch

        check_groups(config, spec)
    if config.buffer.load_from is not None:
        _check_dataset(config.buffer.load_from, spec)
    source = None
    if config.init_from:
        source, policy = _source(config.init_from)
        from rlcore.evaluation.policy import refuse_other_shapes  # torch

        refuse_other_shapes(policy, config, spec)
        config, values = dataclasses.replace(config, init_from=source["path"]), {**values, "init_from": source["path"]}
    if config.checkpoint.resume_from:
        from rlcore.train.resume import refuse_unfit  # torch

        refuse_unfit(Path(config.checkpoint.resume_from), config)
    return config, values, source


def _spec(config: RunConfig) -> EnvSpec:
    """The spec of the environment, once that fits the algorithm and the policy's distribution."""
    from rlcore.envs.make import suite_for
    from rlcore.envs.spaces import spec_of
    from rlcore.envs.vector.choose import check_vector_env
    from rlcore.envs.vector.limited import limited_env

    suite, env_id = suite_for(config.env)
    suite.check(env_id, config.env.wrapper, config.env.num_envs * config.fabric.ranks)
    try:
        with limited_env(config.env) as limited:
            spec = spec_of(limited.env)
    except EnvironmentFault as fault:
        raise UserError(f"env.id={config.env.id}: it cannot be built: {fault}") from fault
    check_vector_env(config.env)
    config.algo.check_spec(spec)
    kind_of(spec.action, config.distribution.type)
    return spec


def _check_memmap_folder(buffer: BufferConfig) -> None:
    """Refuse a folder for a replay memory's rows that cannot be made or written."""
    if not buffer.memmap or buffer.memmap_dir is None:
        return
    folder = Path(buffer.memmap_dir).absolute()
    try:
        # The nearest folder that exists: a refusal must leave nothing behind.
        with tempfile.TemporaryFile(dir=next(place for place in (folder, *folder.parents) if os.path.lexists(place))):
            pass
    except OSError as error:
        raise UserError(
            f"buffer.memmap_dir={buffer.memmap_dir}: cannot be written ({error.strerror}); name another folder"
        ) from None


def _check_dataset(source: str, spec: EnvSpec) -> None:
    """Refuse a dataset that is not there, or of another environment than a memory is to begin with."""
    from rlcore.store import datasets

    try:
        datasets.refuse_unfit(source, spec)
    except UserError as error:
        raise UserError(f"buffer.load_from={error}") from None


def _check_model(config: RunConfig) -> None:
    """Refuse names that registered models cannot have, and a store that MLflow cannot open."""
    if config.model_manager.disabled:
        return
    check_models(config)
    own = config.metric.logger.tracking_uri
    check_address(own or tracking_uri(), "metric.logger.tracking_uri" if own else "MLFLOW_TRACKING_URI")


def _source(uri: str) -> tuple[dict[str, Any], LoadedPolicy]:
    """Origin of weights, as it is kept, and the policy that lies there: an alias may point elsewhere tomorrow."""
    from rlcore.evaluation.policy import load_policy
    from rlcore.store.checkpoint import choose

    registered = uri.startswith("models:/")
    try:
        path = str(resolve_uri(uri)) if registered else uri
        if RunDirectory(path).config.exists():
            # One checkpoint of it: tomorrow another one may be its best, and this run may have to start again.
            path = str(choose(RunDirectory(path)).absolute())
        policy = load_policy(path)
    except UserError as error:
        raise UserError(f"init_from={uri}: {str(error).removeprefix(f'{uri}: ')}") from None
    kept = {"given": uri, "uri": uri if registered else None, "path": path, "digest": policy.description["digest"]}
    return kept, policy

"""Checks of a config before a run directory is created."""

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
    from rlcore.config.groups import RunConfig
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.spec import EnvSpec


@user_code()
def prepare(
    config: RunConfig, values: Mapping[str, Any], here: bool = True
) -> tuple[RunConfig, Mapping[str, Any], dict[str, Any] | None]:
    """Check that a config can be trained, before a run directory is created. This takes seconds and writes no files.

    The checks cover the environment, its observation keys and action space, the dataset, the initial weights or
    checkpoint, and the names of registered models. If `here` is True, this machine will train the run; the checks then
    also cover its device, memory and disk. If a check fails, a `UserError` names the config key and the fix.

    Returns the config, the same config as nested dicts, and the origin of the initial weights (None without
    `init_from`), which `create_run` stores. In the returned config, `init_from` is a local folder, even if it was a
    models:/ URI.
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
    assert spec is not None  # otherwise raise_collected has raised
    if here:
        _check_folder("run_dir", config.run_dir)
        check_resources(config, spec, Path(config.run_dir))
        if config.buffer.memmap and config.buffer.memmap_dir is not None:
            _check_folder("buffer.memmap_dir", config.buffer.memmap_dir)
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
    """Return the environment's spec after checking that the algorithm and the policy's distribution support it."""
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
        raise UserError(f"env.id={config.env.id}: the environment cannot be created: {fault}") from fault
    check_vector_env(config.env)
    config.algo.check_spec(spec)
    kind_of(spec.action, config.distribution.type)
    return spec


def _check_folder(key: str, value: str) -> None:
    """Raise a `UserError` if the folder that a key names cannot be created or written."""
    folder = Path(value).absolute()
    try:
        # Test the nearest existing folder, so that no new folder is left if the check fails.
        with tempfile.TemporaryFile(dir=next(place for place in (folder, *folder.parents) if os.path.lexists(place))):
            pass
    except OSError as error:
        raise UserError(f"{key}={value}: cannot be written ({error.strerror}); choose another folder") from None


def _check_dataset(source: str, spec: EnvSpec) -> None:
    """Raise a `UserError` if the initial dataset of the replay buffer is missing or from another environment."""
    from rlcore.store import datasets

    try:
        datasets.refuse_unfit(source, spec)
    except UserError as error:
        raise UserError(f"buffer.load_from={error}") from None


def _check_model(config: RunConfig) -> None:
    """Raise a `UserError` if a registered model's name is invalid or MLflow cannot open the store."""
    if config.model_manager.disabled:
        return
    check_models(config)
    own = config.metric.logger.tracking_uri
    check_address(own or tracking_uri(), "metric.logger.tracking_uri" if own else "MLFLOW_TRACKING_URI")


def _source(uri: str) -> tuple[dict[str, Any], LoadedPolicy]:
    """Load the policy whose weights a run starts with; return the origin of the weights and the policy.

    The origin is a dict {given, uri, path, digest}, which is stored in run.json. It contains the local path, because
    an alias in the registry may later refer to another version.
    """
    from rlcore.evaluation.policy import load_policy
    from rlcore.store.checkpoint import choose

    registered = uri.startswith("models:/")
    try:
        path = str(resolve_uri(uri)) if registered else uri
        if RunDirectory(path).config.exists():
            # Store one checkpoint: the best one may change later, and this run may have to restart.
            path = str(choose(RunDirectory(path)).absolute())
        policy = load_policy(path)
    except UserError as error:
        raise UserError(f"init_from={uri}: {str(error).removeprefix(f'{uri}: ')}") from None
    origin = {"given": uri, "uri": uri if registered else None, "path": path, "digest": policy.description["digest"]}
    return origin, policy

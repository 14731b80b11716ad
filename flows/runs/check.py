"""Checks of a config before a run directory is created."""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry.models import check_models, resolve_uri
from flows.registry.origin import checkpoint_of
from flows.runs.lineage import UNKNOWN, place_inputs
from flows.settings import tracking_uri
from flows.tracking.loggers import check_logger
from flows.tracking.mlflow_store import check_address
from rlcore.compiled.when_to_compile import check_compiler
from rlcore.config.schema import groups
from rlcore.config.values import at
from rlcore.errors import EnvironmentFault, Mistakes, UserError
from rlcore.nn.network_keys import kind_of
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.store.checkpoint import manifest, policy_steps
from rlcore.store.directory import RunDirectory
from rlcore.train.resource_check import check_device, check_resources
from rlcore.user_code import user_code

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.spec import EnvSpec


@user_code()
def prepare(
    config: RunConfig, values: Mapping[str, Any], here: bool = True
) -> tuple[RunConfig, Mapping[str, Any], dict[str, dict[str, Any]]]:
    """Check that a config can be trained, before a run directory is created. This takes seconds and writes no files.

    The checks cover the environment, its observation keys and action space, the dataset, the initial weights or
    checkpoint, and the names of registered models. If `here` is True, this machine will train the run; the checks then
    also cover its device, memory and disk. If a check fails, a `UserError` names the config key and the fix.

    Returns the config, the same config as nested dicts, and the inputs of the run, which `create_run` stores in
    run.json. The inputs are those of the keys `init_from`, `checkpoint.resume_from` (as `resume_from`),
    `checkpoint.extend_from` (as `extend_from`) and `buffer.load_from` (as `load_from`) that are set. Each is a dict
    with `path`, the local folder or the name of the dataset, and `digest`. All but `resume_from` also have `given`, the
    value of the key. `init_from` and `extend_from` also have `uri`, None if it is not a models:/ URI. `extend_from` has
    `run_id`, `config_hash` and `policy_steps` of the extended run, too.
    In the returned config, the keys of inputs with `given` are these paths. A run is replaced by its checkpoint,
    because the run may write others later.
    """
    mistakes, spec, inputs = Mistakes(), None, dict[str, dict[str, Any]]()
    with mistakes.catch():
        spec = _spec(config)
    with mistakes.catch():
        if here:
            check_device(config.fabric)
    with mistakes.catch():
        check_logger(config.metric.logger, here)
    with mistakes.catch():
        check_compiler(config)
    with mistakes.catch():
        _check_model(config)
    mistakes.raise_collected()
    assert spec is not None  # otherwise raise_collected has raised
    if getattr(config.algo, "model", None) is not None or ":" in config.distribution.type:
        from rlcore.evaluation.policy import check_agent  # torch

        check_agent(config, spec)
    if here:
        _check_folder("run_dir", config.run_dir)
        check_resources(config, spec, Path(config.run_dir))
        if config.buffer.memmap and config.buffer.memmap_dir is not None:
            _check_folder("buffer.memmap_dir", config.buffer.memmap_dir)
    places = [*groups(type(config.algo), OptimizerConfig)]
    if any(at(values, f"algo.{place}.groups") for place in places):
        from rlcore.train.counting import check_groups  # torch

        check_groups(config, spec)
    optimizers: list[OptimizerConfig] = [operator.attrgetter(place)(config.algo) for place in places]
    if own := [optimizer for optimizer in optimizers if ":" in optimizer.name]:
        from rlcore.optim.rules import check_class  # torch

        for optimizer in own:
            check_class(optimizer)
    if config.init_from:
        inputs["init_from"] = _source(config, config.init_from, spec)
    elif config.algo.fine_tunes and not (config.checkpoint.resume_from or config.checkpoint.extend_from):
        from rlcore.train.initial_weights import require_source  # torch

        require_source(config)
    if config.checkpoint.extend_from:
        inputs["extend_from"] = _extended(config, config.checkpoint.extend_from, spec)
    elif config.buffer.load_from is not None:  # an extended run has these rows in its replay buffer
        inputs["load_from"] = _dataset(config, spec)
    if config.checkpoint.resume_from:
        from rlcore.train.resume import refuse_unfit  # torch

        path = Path(config.checkpoint.resume_from)
        refuse_unfit(path, config)
        inputs["resume_from"] = {"path": str(path.absolute()), "digest": manifest(path)["digest"]}
    return *place_inputs(
        config, values, {name: origin["path"] for name, origin in inputs.items() if "given" in origin}
    ), inputs


def _spec(config: RunConfig) -> EnvSpec:
    """Return the environment's spec after checking that the algorithm and the policy's distribution support it."""
    from rlcore.envs.card import check_first_steps
    from rlcore.envs.make import suite_for
    from rlcore.envs.masks import refuse_first_masks
    from rlcore.envs.spaces import spec_of
    from rlcore.envs.vector.choose import check_batched_options, check_vector_env
    from rlcore.envs.vector.limited import limited_env

    suite, env_id = suite_for(config.env)
    suite.check(env_id, config.env.wrapper, config.env.num_envs * config.fabric.ranks)
    try:
        with limited_env(config.env) as limited:
            spec = spec_of(limited.env)
            if config.algo.needs_allowed_action and spec.mask_keys:
                refuse_first_masks(spec, limited, config.seed)
    except EnvironmentFault as fault:
        raise UserError(f"env.id={config.env.id}: the environment cannot be created: {fault}") from fault
    check_vector_env(config.env)
    check_batched_options(config)
    check_first_steps(config.env)
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


def _dataset(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    """Find the initial dataset of the replay buffer; return its origin, a dict {given, path, digest}.

    Raises a `UserError` if the dataset is missing or does not fit the environment.
    """
    from rlcore.evaluation import datasets

    given = str(config.buffer.load_from)
    try:
        path = datasets.locate(given)
        datasets.refuse_unfit(path, spec, config.env)
    except UserError as error:
        raise UserError(f"buffer.load_from={given}: {str(error).removeprefix(f'{given}: ')}") from None
    return {"given": given, "path": path, "digest": datasets.digest(path)}


def _check_model(config: RunConfig) -> None:
    """Raise a `UserError` if a registered model's name is invalid or MLflow cannot open the store."""
    if config.model_manager.disabled:
        return
    check_models(config)
    own = config.metric.logger.tracking_uri
    check_address(own or tracking_uri(), "metric.logger.tracking_uri" if own else "MLFLOW_TRACKING_URI")


def _extended(config: RunConfig, given: str, spec: EnvSpec) -> dict[str, Any]:
    """Check the run that a new run extends, and return its origin (see `prepare`).

    Raises a `UserError` if it has no training state, or if this state does not fit.
    """
    from rlcore.train.extension import locate_state, refuse_unfit  # torch

    registered = given.startswith("models:/")
    try:
        path = locate_state(checkpoint_of(given) if registered else Path(given).absolute())
    except UserError as error:
        raise UserError(f"checkpoint.extend_from={given}: {str(error).removeprefix(f'{given}: ')}") from None
    refuse_unfit(path, config, spec)
    identity = RunDirectory.of_checkpoint(path).read_identity()
    return {
        "given": given,
        "uri": given if registered else None,
        "path": str(path),
        "digest": manifest(path)["digest"],
        "run_id": identity["run_id"],
        "config_hash": identity.get("config_hash", UNKNOWN),
        "policy_steps": policy_steps(path),
    }


def _source(config: RunConfig, uri: str, spec: EnvSpec) -> dict[str, Any]:
    """Check the weights with which a run starts, and return their origin.

    The origin is a dict {given, uri, path, digest}, which is stored in run.json. It contains the local path of one
    checkpoint: an alias in the registry may later refer to another version, a run may write other checkpoints, and this
    run may have to restart. Raises a `UserError` if the weights are missing or do not fit.
    """
    from rlcore.evaluation.policy import policy_of, read_source, refuse_other_shapes  # torch
    from rlcore.train.initial_weights import locate_source, refuse_other_run

    registered = uri.startswith("models:/")
    try:
        path = str(resolve_uri(uri)) if registered else uri
        if (found := locate_source(config, Path(path))) != Path(path):
            path = str(found.absolute())
        source = read_source(path)
        policy = policy_of(source)
    except UserError as error:
        raise UserError(f"init_from={uri}: {str(error).removeprefix(f'{uri}: ')}") from None
    refuse_other_run(config, source, spec)
    refuse_other_shapes(policy, config, spec)
    return {"given": uri, "uri": uri if registered else None, "path": path, "digest": policy.description["digest"]}

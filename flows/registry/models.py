"""The MLflow registry: names, versions and aliases of trained policies, and the way back from a URI to a policy."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.process.files import locked
from flows.settings import configure_environment, state_folder, tracking_uri
from flows.tracking.mlflow_store import connect, prepare_store
from rlcore.config.schema import spell
from rlcore.errors import UserError, nearest
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature

    from rlcore.config.groups import RunConfig
    from rlcore.judge.policy import Policy

URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[^/@]+))")
NAME = re.compile(r"\w[\w .+-]{0,199}")  # no quotes, @ or %: a name stands in queries, URIs and folders
CHAMPION = "champion"  # the alias
SERVED_WITH = ("torch", "numpy", "safetensors")


def model_name(config: RunConfig) -> str:
    """What a run's model is called in the registry.

    Args:
        config: of the run.

    Returns:
        `model_manager.models.agent.model_name`, else `<algo>-<env id>`; slashes and colons, which MLflow forbids,
        become dashes.

    Raises:
        UserError: the name is no text, or cannot be written in a URI or in a query.
    """
    agent = agent_settings(config)
    name = agent.get("model_name")
    if name is None or name == "":
        name = f"{config.algo.name}-{config.env.id}"
    key = "model_manager.models.agent.model_name"
    if not isinstance(name, str):
        raise UserError(f"{key}={spell(name)}: must be text, as my-agent")
    name = re.sub(r"[/:]", "-", name)
    if not NAME.fullmatch(name):
        raise UserError(f"{key}={name}: only letters, digits, spaces and . _ + - are allowed, a letter or digit first")
    return name


def agent_settings(config: RunConfig) -> Mapping[str, Any]:
    """`model_manager.models.agent`: model_name, description and tags, as far as given.

    Args:
        config: of the run.

    Returns:
        The settings; empty when there are none.

    Raises:
        UserError: it, or its tags, are not groups of keys.
    """
    agent = config.model_manager.models.get("agent") or {}
    key = "model_manager.models.agent"
    if not isinstance(agent, Mapping):
        raise UserError(f"{key}={spell(agent)}: this is a group of keys: model_name, description, tags")
    tags = agent.get("tags") or {}
    if not isinstance(tags, Mapping):
        raise UserError(f"{key}.tags={spell(tags)}: this is a group of keys, as {key}.tags.team=blue")
    return agent


def deciding() -> AbstractContextManager[None]:
    """The place of the one process of this checkout that registers models and moves aliases."""
    return locked(state_folder() / "registry.lock")


def description_of(config: RunConfig) -> str:
    """What a run's model is, in words: `model_manager.models.agent.description`, else `<ALGO> agent for <env id>`."""
    return str(agent_settings(config).get("description") or f"{config.algo.name.upper()} agent for {config.env.id}")


def version_of_checkpoint(client: MlflowClient, name: str, digest: str) -> ModelVersion | None:
    """The version of a model that holds this checkpoint, if any."""
    found = client.search_model_versions(f"name = {_quoted(name)} and tags.checkpoint_digest = '{digest}'")
    return min(found, key=lambda version: int(version.version)) if found else None


def model_names(client: MlflowClient) -> list[str]:
    """Every registered model's name, also of those that other programs registered."""
    names, token = [], None
    while token != "":
        page = client.search_registered_models(max_results=1000, page_token=token)
        names += [model.name for model in page]
        token = page.token or ""
    return names


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Every version of a registered model, oldest first."""
    versions, token = [], None
    while token != "":
        page = client.search_model_versions(f"name = {_quoted(name)}", max_results=1000, page_token=token)
        versions += page
        token = page.token or ""
    return sorted(versions, key=lambda version: int(version.version))


def champion_of(client: MlflowClient, name: str) -> ModelVersion | None:
    """The version that bears the alias `champion`, if any."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        # Anything else, a server that is away say, must not look as if the throne were empty.
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def aliases_of(client: MlflowClient, name: str, version: str) -> list[str]:
    """The aliases of one version, sorted."""
    return sorted(client.get_model_version(name, version).aliases)


def signature_of(policy: Policy) -> ModelSignature:
    """Shapes and types of what the policy takes and returns, batch first; `deterministic` as parameter.

    Args:
        policy: the policy to be served.

    Returns:
        An array when the agent sees one observation key, else one named array a key.
    """
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    specs = {key: policy.spec.obs[key] for key in policy.obs_keys}
    names: dict[str, str | None] = {key: key if len(specs) > 1 else None for key in specs}
    inputs: list[ColSpec | TensorSpec] = [
        TensorSpec(np.dtype(spec.dtype), (-1, *spec.shape), names[key]) for key, spec in specs.items()
    ]
    action = policy.spec.action
    outputs: list[ColSpec | TensorSpec] = [TensorSpec(np.dtype(action.dtype), (-1, *action.shape))]
    deterministic = ParamSpec("deterministic", DataType.boolean, True)
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema([deterministic]))


def example_of(policy: Policy) -> Any:
    """A batch of one observation of the right form: zeros, or the smallest value of a Discrete one."""
    import numpy as np

    specs = {key: policy.spec.obs[key] for key in policy.obs_keys}
    arrays = {key: np.full((1, *spec.shape), spec.start, spec.dtype) for key, spec in specs.items()}
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def create_version(
    client: MlflowClient, name: str, folder: Path, run_id: str, tags: Mapping[str, str], description: str = ""
) -> ModelVersion:
    """Log an exported policy as a model of code and weights, and register it as the next version of a name.

    What a killed call left is gone on with: the same policy of the same run is one logged model.

    Args:
        client: of the store that holds the run.
        name: the registered model; made when missing.
        folder: an exported policy.
        run_id: the MLflow run it came from.
        tags: of the new version.
        description: of the new version.

    Returns:
        The version.
    """
    from rlcore.judge.policy import load_policy

    policy = load_policy(folder)
    logged = _logged_model(client, run_id, policy)
    if logged.status != "READY":
        _fill(client, logged, run_id, folder, policy)
    _ensure_model(client, name)
    return client.create_model_version(
        name, logged.artifact_location, run_id, tags=dict(tags), description=description, model_id=logged.model_id
    )


def link_logged_model(client: MlflowClient, version: ModelVersion) -> None:
    """Note on the logged model which version it is, as `mlflow.register_model` does: pages name it by that.

    Args:
        client: of the store.
        version: made by `create_version`.
    """
    assert version.run_id is not None
    found = _search_logged_model(client, version.run_id, version.tags["checkpoint_digest"])
    if found is None:
        return
    key, entry = "mlflow.modelVersions", {"name": version.name, "version": int(version.version)}
    linked = json.loads(found.tags.get(key) or "[]")
    if entry not in linked:
        client.set_logged_model_tags(found.model_id, {key: json.dumps([*linked, entry])})


def _logged_model(client: MlflowClient, run_id: str, policy: Policy) -> LoggedModel:
    """The logged model of this policy and run: the one that a killed call left, whole or not, else a new one."""
    digest = policy.description["digest"]
    return _search_logged_model(client, run_id, digest) or client.create_logged_model(
        client.get_run(run_id).info.experiment_id,
        name="policy",
        source_run_id=run_id,
        tags={"checkpoint_digest": digest},
        model_type="agent",
    )


def _search_logged_model(client: MlflowClient, run_id: str, digest: str) -> LoggedModel | None:
    query = f"source_run_id = '{run_id}' and tags.checkpoint_digest = '{digest}'"
    found = client.search_logged_models([client.get_run(run_id).info.experiment_id], query, max_results=1)
    return found[0] if found else None


def _fill(client: MlflowClient, logged: LoggedModel, run_id: str, folder: Path, policy: Policy) -> None:
    """Write a logged model's files and call it ready: every step does the same once more after a kill.

    `mlflow.pyfunc.log_model` does this in one call, but always makes or links another logged model.
    """
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    here = Path(__file__).resolve().parent
    # The fluent half of MLflow reads one store per process; the client's is the one that counts.
    mlflow.set_tracking_uri(client.tracking_uri)
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "model"
        mlflow.pyfunc.save_model(
            files,
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                run_id=run_id,
                model_uuid=logged.model_id,
                model_id=logged.model_id,
            ),
            python_model=str(here / "served_policy.py"),
            artifacts={"policy": str(folder)},
            code_paths=[str(here.parents[1] / "rlcore")],
            signature=signature_of(policy),
            input_example=example_of(policy),
            pip_requirements=[f"{package}=={_public_version(package)}" for package in SERVED_WITH],
        )
        for cache in files.rglob("__pycache__"):
            shutil.rmtree(cache)
        client.log_model_artifacts(logged.model_id, str(files))
    outputs = client.get_run(run_id).outputs
    if logged.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else ())]:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=policy.description["env_steps"])])
    client.finalize_logged_model(logged.model_id, "READY")


def resolve_uri(uri: str) -> Path:
    """The exported policy behind `models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/NAME/latest`.

    Args:
        uri: a model URI of the project's store.

    Returns:
        A local folder that `rlcore.judge.policy.load_policy` reads.

    Raises:
        UserError: it is no such URI, or there is no such model, version or alias.
    """
    version = _version_of(uri)
    return exported_policy(connect(tracking_uri()), version)


def exported_policy(client: MlflowClient, version: ModelVersion) -> Path:
    """The exported policy of a version as a local folder, kept under `.shepherd/models`: versions do not change.

    Args:
        client: of the store that holds the version.
        version: any version that this project registered.

    Returns:
        The folder.

    Raises:
        UserError: the version was registered by another program.
    """
    digest = version.tags.get("checkpoint_digest")
    if digest is None:
        raise UserError(f"models:/{version.name}/{version.version}: not registered by this project, so no policy of it")
    # The digest is in the name because a store that was deleted starts again at version 1.
    folder = state_folder() / "models" / version.name / f"{version.version}-{digest[:16]}"
    if not folder.exists():
        _download(client, version, folder)
    return folder


def run_of(uri: str) -> Path:
    """The checkpoint directory that a registered version was exported from.

    Args:
        uri: as for `resolve_uri`.

    Returns:
        Its path, in the run directory it was registered from.

    Raises:
        UserError: no such model, or its run or checkpoint is no longer there; says which.
    """
    version = _version_of(uri)
    run_dir, checkpoint = version.tags.get("run_dir"), version.tags.get("checkpoint")
    if run_dir is None or checkpoint is None:
        raise UserError(f"{uri}: not registered by this project, so there is no run of it")
    if not RunDirectory(run_dir).config.exists():
        missing = f"the run it was made from is not at {run_dir} any more"
    elif not (Path(run_dir) / checkpoint / "manifest.json").exists():
        missing = f"the checkpoint it was made from is not at {Path(run_dir) / checkpoint} any more"
    else:
        return Path(run_dir) / checkpoint
    raise UserError(f"{uri}: {missing}; the policy itself still loads in Python with load_policy({uri!r})")


def _version_of(uri: str) -> ModelVersion:
    configure_environment()
    match = URI.fullmatch(uri)
    if match is None:
        raise UserError(f"{uri}: not a model URI; write models:/NAME@champion or models:/NAME/VERSION")
    prepare_store(tracking_uri())
    return find_version(connect(tracking_uri()), uri, match["name"], match["alias"], match["version"])


def require_model(client: MlflowClient, said: str, name: str) -> None:
    """Refuse a name that no registered model has.

    Args:
        client: of the store.
        said: what the user wrote, for the message.
        name: the registered model.

    Raises:
        UserError: names the nearest one, or all there are.
    """
    names = model_names(client)
    if name not in names:
        known = f"; models: {', '.join(names)}" if names else "; none is registered yet"
        raise UserError(f"{said}: no model {name!r}{nearest(name, names) or known}")


def find_version(client: MlflowClient, said: str, name: str, alias: str | None, number: str | None) -> ModelVersion:
    """A version by its alias or by its number.

    Args:
        client: of the store.
        said: what the user wrote, for the message.
        name: the registered model.
        alias: without @; None = by number.
        number: of the version, or "latest".

    Returns:
        The version.

    Raises:
        UserError: there is no such model, alias or version; names the nearest, or all there are.
    """
    from mlflow.exceptions import MlflowException

    require_model(client, said, name)
    versions = versions_of(client, name)
    if not versions:
        raise UserError(f"{said}: {name} has no version")
    if number == "latest":
        return versions[-1]
    try:
        if alias is not None:
            return client.get_model_version_by_alias(name, alias)
        return client.get_model_version(name, str(number))
    except MlflowException:
        aliases = [f"@{a}" for a in client.get_registered_model(name).aliases]
        numbers = [f"/{version.version}" for version in versions]
        raise UserError(f"{said}: {name} has only {', '.join([*aliases, *numbers])}") from None


def _quoted(name: str) -> str:
    """A name in MLflow's query language, which knows two quotes and no escape; other programs' names may hold one."""
    return f'"{name}"' if "'" in name else f"'{name}'"


def _download(client: MlflowClient, version: ModelVersion, folder: Path) -> None:
    from mlflow.artifacts import download_artifacts

    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    source = client.get_model_version_download_uri(version.name, version.version)
    local = Path(download_artifacts(artifact_uri=f"{source}/artifacts", tracking_uri=client.tracking_uri))
    shutil.copytree(next(local.rglob("policy.json")).parent, building)
    try:
        os.rename(building, folder)
    except OSError:  # another process was first; versions do not change, so theirs is ours
        shutil.rmtree(building, ignore_errors=True)


def _ensure_model(client: MlflowClient, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _public_version(package: str) -> str:
    # 2.13.0+cpu is installable from one index only; 2.13.0 is the same code from any.
    return importlib.metadata.version(package).split("+")[0]

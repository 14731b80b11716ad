"""Registered models: names, versions and aliases, and search for the policy or the run of a models:/ URI."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.prefect_repairs.leases import hold_lease
from flows.process.locks import hold
from flows.settings import configure_environment, state_folder, tracking_uri
from flows.tracking.mlflow_store import connect, file_of, pages, prepare_store
from flows.tracking.tags import DIGEST, tag_value
from rlcore import algorithms
from rlcore.config.values import nearest, spell
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from rlcore.config.run import RunConfig

URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[^/@]+))")
NAME = re.compile(r"\w[\w .+-]{0,199}")  # no quotes, @ or %: names are used in queries, URIs and folders
CHAMPION = "champion"  # alias of the champion
AGENT = "agent"  # key of the policy's model in model_manager.models


def model_name(config: RunConfig, part: str = AGENT) -> str:
    """Return the name under which a run's policy, or another component of its agent such as a critic, is registered.

    `part` is "agent" for the policy, or the name of the component. The name is the value of
    `model_manager.models.<part>.model_name`. Its default is `<label>-<env id>` for the policy and
    `<label>-<env id>-<part>` for other components. The label is the name of the preset if the user has written it, and
    otherwise the name of the algorithm. Slashes and colons, which MLflow forbids, become dashes. Raises UserError if
    the name has other characters that are not allowed.
    """
    name, key = model_settings(config, part).get("model_name"), f"model_manager.models.{part}.model_name"
    if name in (None, ""):
        name = f"{config.label or config.algo.name}-{config.env.id}{'' if part == AGENT else f'-{part}'}"
    if not isinstance(name, str):
        raise UserError(f"{key}={spell(name)}: must be text, such as my-agent")
    name = re.sub(r"[/:]", "-", name)
    if not NAME.fullmatch(name):
        raise UserError(
            f"{key}={name}: must start with a letter or digit and may contain only letters, digits, spaces and . _ + - "
            "(at most 200 characters)"
        )
    return name


def model_settings(config: RunConfig, part: str = AGENT) -> Mapping[str, Any]:
    """Return the mapping `model_manager.models.<part>` of a config, which may set model_name, description and tags.

    `part` is "agent" for the policy, or the name of another registered component. Raises UserError if the value or its
    key `tags` is not a mapping.
    """
    model = config.model_manager.models.get(part) or {}
    key = f"model_manager.models.{part}"
    if not isinstance(model, Mapping):
        raise UserError(f"{key}={spell(model)}: this is a group of keys; set {key}.model_name, .description or .tags")
    tags = model.get("tags") or {}
    if not isinstance(tags, Mapping):
        raise UserError(f"{key}.tags={spell(tags)}: this is a group of keys; set e.g. {key}.tags.team=blue")
    return model


def parts_of(config: RunConfig) -> list[str]:
    """Return the names of the components (such as a critic) that are registered as models beside the policy.

    They are the components that the algorithm can export and that have a value in `model_manager.models`.
    """
    made = [part for part in config.algo.exported_components if part not in config.algo.absent_components]
    return [part for part in made if config.model_manager.models.get(part) is not None]


def check_models(config: RunConfig) -> None:
    """Raise UserError if the name of a model that the run will register is not allowed or used twice."""
    names: dict[str, str] = {}
    for part in (AGENT, *parts_of(config)):
        name = model_name(config, part)
        if name in names:
            key = f"model_manager.models.{part}.model_name"
            raise UserError(f"{key}={name}: the model of {names[name]} has the same name; choose another name")
        names[name] = part


@contextmanager
def deciding(store: str) -> Iterator[None]:
    """Context manager that locks the model registry while a model is registered or an alias is moved.

    The lock excludes other processes, including those on other machines that use the same Prefect server. `store` is
    the address of MLflow's database or server.
    """
    file = file_of(store)
    folder = file.parent if file else state_folder()
    lock = hold(folder / "registry.lock", waiting="registers a model or moves an alias")
    with lock, hold_lease("registry", folder / "registry.lease"):
        yield


def description_of(config: RunConfig, part: str = AGENT) -> str:
    """Return the description of a registered model.

    It is the value of `model_manager.models.<part>.description`. The default is the name of the algorithm, `part` and
    the environment id. `part` is "agent" for the policy, or the name of another registered component.
    """
    configured = model_settings(config, part).get("description")
    return str(configured or f"{algorithms.title(config.algo.name)} {part} for {config.env.id}")


def version_of_checkpoint(client: MlflowClient, name: str, digest: str) -> ModelVersion | None:
    """Return the oldest version of a model that was exported from the checkpoint with the hash `digest`, or None."""
    found = client.search_model_versions(f"name = {_quote(name)} and tags.`{DIGEST}` = '{digest}'")
    return min(found, key=lambda version: int(version.version)) if found else None


def model_names(client: MlflowClient) -> list[str]:
    """Return the names of all registered models, including those that other programs registered."""
    return [model.name for page in pages(client.search_registered_models, max_results=1000) for model in page]


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Return all versions of a registered model, oldest first."""
    found = pages(client.search_model_versions, f"name = {_quote(name)}", max_results=1000)
    return sorted((version for page in found for version in page), key=lambda version: int(version.version))


def champion_of(client: MlflowClient, name: str) -> ModelVersion | None:
    """Return the version of a model that has the alias `champion`; None if no version has it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        # Any other error, such as an unreachable server, does not mean that there is no champion.
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def resolve_uri(uri: str) -> Path:
    """Download a registered policy, or another registered component such as a critic, and return its local folder.

    `uri` is `models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/NAME/latest`. The folder can be loaded with
    `rlcore.evaluation.policy`. Raises UserError if the model does not exist.
    """
    version = version_at(uri)  # first, because it sets the environment variables that MLflow reads on import
    return fetch_policy(connect(tracking_uri()), version)


def local_path(path_or_uri: str | Path) -> str | Path:
    """Return the local path of a model: a `models:/` URI is resolved in the registry, a path is returned unchanged."""
    return resolve_uri(str(path_or_uri)) if str(path_or_uri).startswith("models:/") else path_or_uri


def fetch_policy(client: MlflowClient, version: ModelVersion) -> Path:
    """Return the local policy folder of a registered version.

    The policy is downloaded once and cached under `.shepherd/models`. Raises UserError if another program registered
    the version.
    """
    digest = tag_value(version.tags, "checkpoint_digest")
    if digest is None:
        raise UserError(
            f"models:/{version.name}/{version.version}: was not registered by Shepherd, so it contains no policy"
        )
    # The folder name contains the digest, because a new store after a deleted one starts again at version 1.
    folder = state_folder() / "models" / version.name / f"{version.version}-{digest[:16]}"
    if not folder.exists():
        _download(client, version, folder)
    return folder


def run_of(uri: str) -> Path:
    """Return the path of the checkpoint from which a registered version was exported.

    Raises UserError if the run or the checkpoint does not exist on this machine.
    """
    version = version_at(uri)
    run_dir, checkpoint = tag_value(version.tags, "run_dir"), tag_value(version.tags, "checkpoint")
    if run_dir is None or checkpoint is None:
        raise UserError(f"{uri}: was not registered by Shepherd, so its run is unknown")
    path = Path(run_dir) / checkpoint
    if RunDirectory(run_dir).config.exists() and (path / "manifest.json").exists():
        return path
    missing = f"checkpoint {path}"
    if not RunDirectory(run_dir).config.exists():
        missing = f"run {run_dir}"
    raise UserError(
        f"{uri}: its {missing} does not exist on this machine; load_policy({uri!r}) still loads the policy in Python"
    )


def version_at(uri: str) -> ModelVersion:
    """Return the registered version of a models:/ URI; raise UserError if the URI is invalid or no version matches."""
    configure_environment()
    match = URI.fullmatch(uri)
    if match is None:
        raise UserError(f"{uri}: not a model URI; write models:/NAME@champion or models:/NAME/VERSION")
    path = file_of(tracking_uri())
    if path is not None and not path.exists():  # it would be created
        raise UserError(f"{uri}: no model {match['name']!r}; no model is registered yet")
    prepare_store(tracking_uri())
    return find_version(connect(tracking_uri()), uri, match["name"], match["alias"], match["version"])


def require_model(client: MlflowClient, source: str, name: str) -> None:
    """Raise UserError if no registered model has the name `name`.

    The message starts with `source`, which is the text that the user typed.
    """
    names = model_names(client)
    if name not in names:
        known = f"; registered models: {', '.join(names)}" if names else "; no model is registered yet"
        raise UserError(f"{source}: no model {name!r}{nearest(name, names) or known}")


def find_version(client: MlflowClient, source: str, name: str, alias: str | None, number: str | None) -> ModelVersion:
    """Return the version of a registered model that has an alias or a number.

    Args:
        client: client of the registry.
        source: text that the user typed; error messages start with it.
        name: name of the model.
        alias: alias without @, or None to use `number`.
        number: version number or "latest"; ignored if `alias` is not None.

    Returns:
        The version.

    Raises:
        UserError: If the model or the version does not exist; the message lists the existing ones.
    """
    from mlflow.exceptions import MlflowException

    require_model(client, source, name)
    versions = versions_of(client, name)
    if not versions:
        raise UserError(f"{source}: the model {name} has no version; train a run to register one")
    if number == "latest":
        return versions[-1]
    try:
        if alias is not None:
            return client.get_model_version_by_alias(name, alias)
        return client.get_model_version(name, str(number))
    except MlflowException:
        aliases = [f"@{a}" for a in client.get_registered_model(name).aliases]
        numbers = [f"/{version.version}" for version in versions]
        raise UserError(
            f"{source}: {name} has no such version or alias; existing: {', '.join([*aliases, *numbers])}"
        ) from None


def _quote(name: str) -> str:
    """Quote a name for MLflow's query language, which has two kinds of quotes but no escape characters."""
    return f'"{name}"' if "'" in name else f"'{name}'"


def _download(client: MlflowClient, version: ModelVersion, folder: Path) -> None:
    from mlflow.artifacts import download_artifacts

    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    source = client.get_model_version_download_uri(version.name, version.version)
    local = Path(download_artifacts(artifact_uri=f"{source}/artifacts", tracking_uri=client.tracking_uri))
    shutil.copytree(next(path for name in ("policy.json", "part.json") for path in local.rglob(name)).parent, building)
    try:
        os.rename(building, folder)
    except OSError:  # another process was faster; its copy is the same, because versions do not change
        shutil.rmtree(building, ignore_errors=True)

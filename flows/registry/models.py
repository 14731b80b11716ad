"""Registered models: their names, versions and aliases, and the way from a models:/ URI to a policy or its run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.process.leases import alone
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

    from rlcore.config.groups import RunConfig

URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[^/@]+))")
NAME = re.compile(r"\w[\w .+-]{0,199}")  # no quotes, @ or %: a name stands in queries, URIs and folders
CHAMPION = "champion"  # the alias
AGENT = "agent"  # the model that is the policy, in model_manager.models


def model_name(config: RunConfig, part: str = AGENT) -> str:
    """Name of a run's model, or of one of its parts': `model_manager.models.<part>.model_name`.

    If none is given it is `<label>-<env id>`, with `-<part>` for a part; the label is the user's own preset, or the
    algorithm. Slashes and colons, which MLflow forbids, become dashes. A `UserError` if no URI or query can contain it.
    """
    name, key = model_settings(config, part).get("model_name"), f"model_manager.models.{part}.model_name"
    if name in (None, ""):
        name = f"{config.label or config.algo.name}-{config.env.id}{'' if part == AGENT else f'-{part}'}"
    if not isinstance(name, str):
        raise UserError(f"{key}={spell(name)}: must be text, as my-agent")
    name = re.sub(r"[/:]", "-", name)
    if not NAME.fullmatch(name):
        raise UserError(f"{key}={name}: only letters, digits, spaces and . _ + - are allowed, a letter or digit first")
    return name


def model_settings(config: RunConfig, part: str = AGENT) -> Mapping[str, Any]:
    """`model_manager.models.<part>`: model_name, description, tags, as far as given; a `UserError` where it is none."""
    model = config.model_manager.models.get(part) or {}
    key = f"model_manager.models.{part}"
    if not isinstance(model, Mapping):
        raise UserError(f"{key}={spell(model)}: this is a group of keys: model_name, description, tags")
    tags = model.get("tags") or {}
    if not isinstance(tags, Mapping):
        raise UserError(f"{key}.tags={spell(tags)}: this is a group of keys, as {key}.tags.team=blue")
    return model


def parts_of(config: RunConfig) -> list[str]:
    """The parts of a run's learner that get a model of their own, beside the policy's: those whose group is there."""
    return [part for part in config.algo.registers if config.model_manager.models.get(part) is not None]


def check_models(config: RunConfig) -> None:
    """Refuse names that no registered model can have, and two models of one name."""
    names: dict[str, str] = {}
    for part in (AGENT, *parts_of(config)):
        name = model_name(config, part)
        if name in names:
            key = f"model_manager.models.{part}.model_name"
            raise UserError(f"{key}={name}: the model of {names[name]} is called so; give it another name")
        names[name] = part


@contextmanager
def deciding(store: str) -> Iterator[None]:
    """Be the one process that registers models and moves aliases in a store, on all machines of a Prefect server."""
    file = file_of(store)
    folder = file.parent if file else state_folder()
    lock = hold(folder / "registry.lock", waiting="registers a model, or moves an alias")
    with lock, alone("registry", folder / "registry.lease"):
        yield


def description_of(config: RunConfig, part: str = AGENT) -> str:
    """Description of a run's model: `model_manager.models.<part>.description`, else algorithm, part and environment."""
    said = model_settings(config, part).get("description")
    return str(said or f"{algorithms.title(config.algo.name)} {part} for {config.env.id}")


def version_of_checkpoint(client: MlflowClient, name: str, digest: str) -> ModelVersion | None:
    """The version of a model that holds this checkpoint, if any."""
    found = [
        version
        for tag in (DIGEST, "checkpoint_digest")  # the second one is that of earlier versions
        for version in client.search_model_versions(f"name = {_quote(name)} and tags.`{tag}` = '{digest}'")
    ]
    return min(found, key=lambda version: int(version.version)) if found else None


def model_names(client: MlflowClient) -> list[str]:
    """Every registered model's name, also of those that other programs registered."""
    return [model.name for page in pages(client.search_registered_models, max_results=1000) for model in page]


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Every version of a registered model, oldest first."""
    found = pages(client.search_model_versions, f"name = {_quote(name)}", max_results=1000)
    return sorted((version for page in found for version in page), key=lambda version: int(version.version))


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


def resolve_uri(uri: str) -> Path:
    """The policy, or part of a learner, behind `models:/NAME@ALIAS`, `models:/NAME/VERSION` or `models:/NAME/latest`.

    A local folder, which `rlcore.judge.policy` reads; a `UserError` where there is no such model.
    """
    version = version_at(uri)  # first: it sets what MLflow reads when it is imported, and where its store is
    return fetch_policy(connect(tracking_uri()), version)


def fetch_policy(client: MlflowClient, version: ModelVersion) -> Path:
    """The exported policy of a version as a local folder, kept under `.shepherd/models`: versions do not change."""
    digest = tag_value(version.tags, "checkpoint_digest")
    if digest is None:
        raise UserError(f"models:/{version.name}/{version.version}: not registered by this project, so no policy of it")
    # The digest is in the name because a store that was deleted starts again at version 1.
    folder = state_folder() / "models" / version.name / f"{version.version}-{digest[:16]}"
    if not folder.exists():
        _download(client, version, folder)
    return folder


def run_of(uri: str) -> Path:
    """The checkpoint that a registered version was exported from, in its run; a `UserError` where that is gone."""
    version = version_at(uri)
    run_dir, checkpoint = tag_value(version.tags, "run_dir"), tag_value(version.tags, "checkpoint")
    if run_dir is None or checkpoint is None:
        raise UserError(f"{uri}: not registered by this project, so there is no run of it")
    path = Path(run_dir) / checkpoint
    if RunDirectory(run_dir).config.exists() and (path / "manifest.json").exists():
        return path
    missing = f"checkpoint it was made from is not at {path}"
    if not RunDirectory(run_dir).config.exists():
        missing = f"run it was made from is not at {run_dir}"
    raise UserError(f"{uri}: the {missing} any more; the policy itself still loads in Python with load_policy({uri!r})")


def version_at(uri: str) -> ModelVersion:
    """The version that a models:/ URI names; a `UserError` where it is none, or there is no such version."""
    configure_environment()
    match = URI.fullmatch(uri)
    if match is None:
        raise UserError(f"{uri}: not a model URI; write models:/NAME@champion or models:/NAME/VERSION")
    prepare_store(tracking_uri())
    return find_version(connect(tracking_uri()), uri, match["name"], match["alias"], match["version"])


def require_model(client: MlflowClient, said: str, name: str) -> None:
    """Raise a `UserError` about what the user wrote (`said`) when no registered model has this name."""
    names = model_names(client)
    if name not in names:
        known = f"; models: {', '.join(names)}" if names else "; none is registered yet"
        raise UserError(f"{said}: no model {name!r}{nearest(name, names) or known}")


def find_version(client: MlflowClient, said: str, name: str, alias: str | None, number: str | None) -> ModelVersion:
    """The version of a model with this alias, without @, or else with this number, which may be "latest".

    A `UserError` about what the user wrote (`said`) names the nearest, or all there are.
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


def _quote(name: str) -> str:
    """A name in MLflow's query language, which knows two quotes and no escape; other programs' names may hold one."""
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
    except OSError:  # another process was first; versions do not change, so theirs is ours
        shutil.rmtree(building, ignore_errors=True)

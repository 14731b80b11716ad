"""Upload of policy folders to MLflow as a logged model, and registration as a version.

MLflow distinguishes a *logged model* (files, shown on the page of a run) from a *version* of a registered model, which
refers to a logged model. If the process is killed, each step can be repeated without creating a second logged model of
the same checkpoint.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.tracking.mlflow_store import pages
from flows.tracking.tags import DIGEST, tag_value
from rlcore import plugins
from rlcore.evaluation.signature import Column, Signature

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature

LINKED = "mlflow.modelVersions"  # tag of a logged model that lists its versions


@dataclass(frozen=True)
class PolicyFolder:
    """Policy folder, and a description of the inputs and outputs of its policy.

    Attributes:
        folder: path of the policy folder.
        description: content of the file policy.json.
        signature: names, shapes and dtypes of the policy's inputs and outputs.
        example: name of each input -> array with batch size 1, for the first time step of an episode.
    """

    folder: Path
    description: Mapping[str, Any]
    signature: Signature
    example: Mapping[str, np.ndarray]

    @classmethod
    def from_json(cls, folder: Path, facts: Mapping[str, Any]) -> PolicyFolder:
        """Create an instance from a policy folder and the JSON values of `flows.registry.playing.write_policy`."""

        def columns(listed: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
            return tuple(Column(one["name"], one["kind"], tuple(one["shape"]), one["dtype"]) for one in listed)

        signature = Signature(columns(facts["signature"]["inputs"]), columns(facts["signature"]["outputs"]))
        example = {
            one.name: np.array(facts["example"][one.name], one.dtype).reshape(1, *one.shape) for one in signature.inputs
        }
        return cls(folder, facts["description"], signature, example)


def create_version(
    client: MlflowClient, name: str, policy: PolicyFolder, run_id: str, tags: Mapping[str, str], description: str = ""
) -> ModelVersion:
    """Log a policy as a model of an MLflow run, and register it as the next version of the model `name`.

    Args:
        client: client of the registry.
        name: name of the registered model; it is created if it does not exist.
        policy: the policy folder.
        run_id: id of the MLflow run.
        tags: tags of the version; the inputs and outputs of the policy are added.
        description: description of the version.

    Returns:
        The new version.
    """
    columns = {"takes": policy.signature.inputs, "gives": policy.signature.outputs}
    tags = {**tags, **{name: ", ".join(map(str, found)) for name, found in columns.items()}}
    logged = _find_or_begin(client, "policy", run_id, policy.description["digest"], "agent")
    if logged.status != "READY":
        _fill(client, logged, run_id, policy)
    return _register(client, name, logged, run_id, tags, description)


def create_part_version(
    client: MlflowClient, name: str, part: str, folder: Path, run_id: str, tags: Mapping[str, str], description: str
) -> ModelVersion:
    """Log an exported component, such as a critic, as a model of an MLflow run, and register it as the next version.

    The model contains only files, so MLflow cannot serve it; `flows.load_part` loads it.

    Args:
        client: client of the registry.
        name: name of the registered model; it is created if it does not exist.
        part: name of the component.
        folder: folder with the files of the component.
        run_id: id of the MLflow run.
        tags: tags of the version, including the hash of the checkpoint.
        description: description of the version.

    Returns:
        The new version.
    """
    from mlflow.models import Model

    logged = _find_or_begin(client, part, run_id, f"{tags[DIGEST]}-{part}", "part")
    if logged.status != "READY":
        with tempfile.TemporaryDirectory() as temporary:
            files = Path(temporary) / "model"
            shutil.copytree(folder, files / "artifacts" / part)
            logged_model = Model(logged.artifact_location, run_id, model_uuid=logged.model_id, model_id=logged.model_id)
            logged_model.add_flavor("shepherd", part=part, data=f"artifacts/{part}")
            logged_model.save(str(files / "MLmodel"))
            client.log_model_artifacts(logged.model_id, str(files))
        client.finalize_logged_model(logged.model_id, "READY")
    return _register(client, name, logged, run_id, tags, description)


def _find_or_begin(client: MlflowClient, name: str, run_id: str, digest: str, kind: str) -> LoggedModel:
    """Return the logged model of an MLflow run for the weights with the hash `digest`; create it if it does not exist.

    An existing model was created by an earlier call that was killed. If it is unfinished, its status is not READY.
    """
    begun = [logged for logged in _find_logged_models(client, run_id) if _digest_of(logged) == digest]
    if begun:
        return min(begun, key=lambda one: one.status != "READY")
    experiment = client.get_run(run_id).info.experiment_id
    return client.create_logged_model(experiment, name, run_id, tags={DIGEST: digest}, model_type=kind)


def _register(
    client: MlflowClient, name: str, logged: LoggedModel, run_id: str, tags: Mapping[str, str], description: str
) -> ModelVersion:
    """Create the next version of a registered model from a logged model."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return client.create_model_version(
        name, logged.artifact_location, run_id, tags={**tags}, description=description, model_id=logged.model_id
    )


def link_logged_model(client: MlflowClient, version: ModelVersion) -> None:
    """Add a registered version to a tag of its logged model, so that MLflow's pages show the version with the model.

    `mlflow.register_model` writes the same tag, but `MlflowClient.create_model_version` does not.
    """
    assert version.run_id is not None
    key, entry = LINKED, {"name": version.name, "version": int(version.version)}
    for logged in _find_logged_models(client, version.run_id):
        linked = json.loads(logged.tags.get(key) or "[]")
        if _is_made_of(version, logged) and entry not in linked:
            client.set_logged_model_tags(logged.model_id, {key: json.dumps([*linked, entry])})


def delete_leftovers(client: MlflowClient, run_id: str, digest: str) -> None:
    """Delete logged models of an MLflow run that no registered version refers to.

    Only models that are unfinished or have the checkpoint hash `digest` are deleted. They can have three causes. A
    process was killed while the server was still handling its request, so the next process created a second model.
    MLflow's client sent a request twice. Or another run has registered the same weights in the meantime.
    """
    versions = [v for page in pages(client.search_model_versions, f"run_id = '{run_id}'") for v in page]
    for logged in _find_logged_models(client, run_id):
        unfinished = logged.status == "PENDING" or _digest_of(logged) == digest
        registered = LINKED in logged.tags or any(_is_made_of(version, logged) for version in versions)
        if unfinished and not registered:
            client.delete_logged_model(logged.model_id)


def mlflow_signature(signature: Signature) -> ModelSignature:
    """Convert a policy's signature to a signature of MLflow.

    A batch axis of any size is added in front of each shape, and the parameter `deterministic` is added. If the policy
    has only one input, MLflow's input has no name. Otherwise inputs have names; outputs always have names.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    def schema(columns: Sequence[Column], named: bool) -> Schema:
        return Schema([TensorSpec(np.dtype(c.dtype), (-1, *c.shape), c.name if named else None) for c in columns])

    deterministic = ParamSpec("deterministic", DataType.boolean, True)
    inputs, outputs = schema(signature.inputs, signature.by_name), schema(signature.outputs, True)
    return ModelSignature(inputs, outputs, ParamSchema([deterministic]))


def _find_logged_models(client: MlflowClient, run_id: str) -> list[LoggedModel]:
    """Return the logged models of a run that Shepherd created."""
    experiment = client.get_run(run_id).info.experiment_id
    found = pages(client.search_logged_models, [experiment], f"source_run_id = '{run_id}'")
    return [logged for page in found for logged in page if _digest_of(logged)]


def _digest_of(logged: LoggedModel) -> str | None:
    return tag_value(logged.tags, "checkpoint_digest")


def _is_made_of(version: ModelVersion, logged: LoggedModel) -> bool:
    """Return True if a registered version refers to a logged model.

    A version that a user registered with MLflow's own tools may refer to it only by a path in `source`.
    """
    return logged.model_id == version.model_id or logged.model_id in (version.source or "")


def _fill(client: MlflowClient, logged: LoggedModel, run_id: str, policy: PolicyFolder) -> None:
    """Write the files of a logged model that has no files yet, and set its status to READY.

    `mlflow.pyfunc.log_model` is not used, because it would create another logged model.
    """
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    here = Path(__file__).resolve().parent
    # MLflow's fluent API uses one store per process; it must be the client's.
    mlflow.set_tracking_uri(client.tracking_uri)
    model_id, location = logged.model_id, logged.artifact_location
    # 2.13.0+cpu can be installed from one index only; 2.13.0 is the same code from any index.
    libraries, needed = ["torch", "numpy", "safetensors"], policy.description["plugins"]
    if needed:  # a plugin's package may contain an environment too
        libraries.append("gymnasium")
    code = {str(plugins.source(module.partition(".")[0])) for module in needed}  # plugins must be listed again to serve
    versions = [(name, importlib.metadata.version(name).split("+")[0]) for name in libraries]
    example: Any = policy.example if policy.signature.by_name else next(iter(policy.example.values()))
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "model"
        mlflow.pyfunc.save_model(
            files,
            mlflow_model=Model(artifact_path=location, run_id=run_id, model_uuid=model_id, model_id=model_id),
            python_model=str(here / "served_policy.py"),
            artifacts={"policy": str(policy.folder)},
            code_paths=[str(here.parents[1] / "rlcore"), *sorted(code)],
            signature=mlflow_signature(policy.signature),
            input_example=example,
            pip_requirements=[f"{name}=={version}" for name, version in versions],
        )
        for cache in files.rglob("__pycache__"):
            shutil.rmtree(cache)
        client.log_model_artifacts(model_id, str(files))
    outputs = client.get_run(run_id).outputs
    if model_id not in [output.model_id for output in (outputs.model_outputs if outputs else ())]:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, step=policy.description["policy_steps"])])
    client.finalize_logged_model(model_id, "READY")

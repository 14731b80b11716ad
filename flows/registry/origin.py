"""Origin of a registered version: its run directory, or the files of the run that MLflow stores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flows.registry.models import version_at
from flows.settings import tracking_uri
from flows.tracking.mlflow_store import connect
from flows.tracking.tags import tag_value
from rlcore.errors import UserError
from rlcore.store.checkpoint import damage, manifest, newest_first
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

KEPT = ("config.yaml", "config_overrides.txt", "lineage.json")


def origin(uri: str, folder: Path) -> tuple[Path, str]:
    """Return a folder with the files that are needed to repeat the training of a version, and its checkpoint's hash.

    If the run directory of the version exists on this machine, it is returned. Otherwise the files whose names are in
    `KEPT` are downloaded from MLflow to `folder`. Raises UserError if MLflow does not have them either.
    """
    version = version_at(uri)
    run_dir, run_id, digest = (tag_value(version.tags, name) for name in ("run_dir", "run_id", "checkpoint_digest"))
    if run_dir is None or run_id is None or digest is None:
        raise UserError(f"{uri}: was not registered by Shepherd, so its lineage (run, data and code) is unknown")
    run = RunDirectory(run_dir)
    if run.config.exists() and run.read_identity()["run_id"] == run_id:
        return run.path, digest
    _download(uri, version, folder)
    return folder, digest


def checkpoint_of(uri: str) -> Path:
    """Return the checkpoint of a registered version, with the complete state of its training.

    Raises UserError if its run directory is not on this machine, or if the run has removed this checkpoint.
    """
    with tempfile.TemporaryDirectory() as downloads:
        folder, digest = origin(uri, Path(downloads))
        run = RunDirectory(folder)
        if folder != Path(downloads):
            for path in newest_first(run.checkpoints):
                if damage(path) is None and manifest(path)["digest"] == digest:
                    return path
            raise UserError(f"{uri}: its run {run.path} does not have this checkpoint any more; give the run")
    raise UserError(f"{uri}: its run is not on this machine, and a registered model has no training state")


def _download(uri: str, version: ModelVersion, folder: Path) -> None:
    from mlflow.exceptions import MlflowException

    client = connect(tracking_uri())
    for name in KEPT:
        try:
            client.download_artifacts(str(version.run_id), name, str(folder))
        except (MlflowException, OSError):
            raise UserError(
                f"{uri}: its run {tag_value(version.tags, 'run_dir')} does not exist here, and MLflow does not have "
                f"the run's file {name}. Releases before 0.2.0 did not store it; run this command on the machine that "
                "has the run directory"
            ) from None

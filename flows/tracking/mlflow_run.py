"""Copy of a run directory as an MLflow run: parameters, metric values, files, results and status.

Data that MLflow already has is not written again, so `update_mlflow` can be called at any time and any number of times.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import rlcore
from flows.settings import artifact_root, own_store
from flows.tracking.mlflow_points import log_points
from flows.tracking.mlflow_store import connect, file_of, pages, prepare_store, store_uri, user
from flows.tracking.mlflow_sweep import PARENT, tags_of_trial
from flows.tracking.news import NewEvents
from flows.tracking.run_list import VIEW, view
from flows.tracking.tags import PREFIX, prefixed, tag_value
from rlcore.config.values import spell
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import COMPLETE
from rlcore.store.run_files import read_mapping
from rlcore.store.series import Event
from rlcore.system.secrets import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_TAG = f"{PREFIX}run_id"
STATUS = dict.fromkeys(COMPLETE, "FINISHED")
STATUS |= {"interrupted": "KILLED", "pruned": "KILLED", "failed": "FAILED", "died": "KILLED"}
log = logging.getLogger(__name__)
STOPPED_BY = "stopped_by"
UPLOADS = ".mlflow/uploads.json"
BATCH_PARAMS = 100
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"  # MLflow's page then shows runs, not traces
NOTE = "mlflow.note.content"  # MLflow's name for a run's description


def update_mlflow(run: RunDirectory, news: NewEvents) -> str:
    """Copy a run's new data to MLflow; create the MLflow run if it does not exist.

    The caller must have locked the lock file `.mlflow/lock` of the run.

    Args:
        run: the run directory.
        news: reader of the run's event log.

    Returns:
        Id of the MLflow run.

    Raises:
        RunError: The MLflow run or its experiment was deleted in MLflow (it is not created again), or its files are
            stored by an MLflow server while MLflow is used without a server now.
    """
    tree = run.read_config()
    uri = store_of(run)
    prepare_store(uri)
    client = connect(uri)
    stored = find_run(client, run) or _create_run(client, run, tree, news)
    run_id = stored.info.run_id
    if stored.info.lifecycle_stage != "active":
        raise RunError(f"MLflow run {run_id} of {run.path} was deleted in MLflow; restore it there to update it")
    if _out_of_reach(stored.info.artifact_uri or "", uri):
        raise RunError(
            f"MLflow run {run_id} of {run.path} was created by a server, which stores its files; start that server and "
            "set MLFLOW_TRACKING_URI to its address"
        )
    if PARENT not in stored.data.tags:  # the sweep's run may be newer, or was not available
        for key, value in tags_of_trial(client, run).items():
            client.set_tag(run_id, key, value)
    _log_params(client, stored, tree)
    known = news.notes.get("mlflow") == (client.tracking_uri, run_id)  # else earlier points went to another MLflow run
    log_points(client, stored, (news if known else news.everything()).points(), whole=not known)
    news.notes["mlflow"] = client.tracking_uri, run_id
    _log_artifacts(client, run, run_id)
    _log_results(client, run, stored)
    _tag_stop(client, stored, news.ended)
    _set_status(client, stored, news.ended)
    return run_id


def store_of(run: RunDirectory) -> str:
    """Return the URI of MLflow's database or server that contains, or will contain, a run.

    This is the configured URI, with one exception: if none is configured and the run is already in an existing SQLite
    file, that file is used. It may belong to another checkout of the project, in which the run was started.
    """
    chosen, noted = store_uri(run.read_config()), _uploads(run)["store"].get("uri", "")
    there = file_of(noted)
    return noted if chosen == own_store() and there is not None and there.exists() else chosen


def find_run(client: MlflowClient, run: RunDirectory) -> Run | None:
    """Return the MLflow run that belongs to a run directory, even if it was deleted in MLflow; None if there is none.

    If the run directory contains the id of the MLflow run, it is found by this id. Otherwise, all experiments are
    searched for a run with the tag `shepherd.run_id`.
    """
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    noted = _uploads(run)["store"]
    if noted.get("uri") == redact(client.tracking_uri):
        try:
            return client.get_run(noted["run"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    query = f"tags.`{RUN_TAG}` = '{run.read_identity()['run_id']}'"
    for page in pages(client.search_experiments, view_type=ViewType.ALL):
        experiments = [experiment.experiment_id for experiment in page]
        if runs := client.search_runs(experiments, query, run_view_type=ViewType.ALL, max_results=1):
            return runs[0]
    return None


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a nested config to MLflow parameters: dotted key `a.b.c` -> value as text of at most 500 characters."""
    params: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            params |= flat(value, f"{prefix}{key}.")
        else:
            params[f"{prefix}{key}"] = redact(spell(value))[:500]
    return params


def _create_run(client: MlflowClient, run: RunDirectory, tree: Mapping[str, Any], news: NewEvents) -> Run:
    start = int(news.start["time"] * 1000) if news.start else None
    tags = _tags(run, tree) | tags_of_trial(client, run)
    return client.create_run(experiment_of(client, tree), start_time=start, tags=tags, run_name=run.name)


def experiment_of(client: MlflowClient, tree: Mapping[str, Any]) -> str:
    """Return the id of the MLflow experiment that the config of a run names; create it if it does not exist."""
    name = tree["metric"]["logger"]["experiment_name"] or tree["exp_name"]
    return _experiment(client, name or f"{tree['algo']['name']}_{tree['env']['id']}", client.tracking_uri)


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None and _out_of_reach(experiment.artifact_location, uri):
        # A server on this SQLite file stores the files of this experiment, but now the file is opened without a server.
        return _experiment(client, f"{name} (no server)", uri)
    if experiment is None:
        # An MLflow server chooses the location of files. Without a server, this code chooses it.
        location = f"{artifact_root()}/{name.replace('/', '-')}" if uri.startswith("sqlite:") else None
        try:
            return client.create_experiment(name, artifact_location=location, tags={KIND: TRAINING, VIEW: view()})
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise RunError(f"exp_name={name}: this MLflow experiment was deleted; restore it or choose another exp_name")
    for tag, value in ((KIND, TRAINING), (VIEW, view())):
        if tag not in experiment.tags:  # created by the user
            client.set_experiment_tag(experiment.experiment_id, tag, value)
    return experiment.experiment_id


def _out_of_reach(artifacts: str, uri: str) -> bool:
    """Return True if files are stored by an MLflow server, but MLflow is used without a server.

    Args:
        artifacts: location of the files, as MLflow reports it.
        uri: URI of MLflow's database or server.

    Returns:
        True if the files cannot be accessed.
    """
    return artifacts.startswith("mlflow-artifacts:") and uri.startswith("sqlite:")


def _tags(run: RunDirectory, tree: Mapping[str, Any]) -> dict[str, str]:
    identity = run.read_identity()
    commit, chosen = spell(identity.get("commit", "unknown")), tree["metric"]["logger"].get("tags") or {}
    return {str(key): redact(spell(value)) for key, value in chosen.items()} | {  # MLflow shows them in this order
        "algo": tree["algo"]["name"],
        "env_id": tree["env"]["id"],
        "seed": spell(tree["seed"]),
        **({"group": str(tree["group"])} if tree["group"] else {}),
        **prefixed(
            {
                "run_id": identity["run_id"],
                "commit": commit,
                "dirty": spell(identity.get("dirty", "unknown")),
                **({"reproduces": identity["reproduces"]} if "reproduces" in identity else {}),
                **({"extends": identity["extend_from"]["run_id"]} if "extend_from" in identity else {}),
                "version": rlcore.__version__,
                "run_dir": str(run.path.absolute()),
            }
        ),
        "mlflow.user": user(),
        "mlflow.source.name": "shepherd",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit,
    }


def _log_params(client: MlflowClient, stored: Run, tree: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    wanted, present = flat(tree), stored.data.params
    missing = [Param(key, value) for key, value in wanted.items() if key not in present]
    for start in range(0, len(missing), BATCH_PARAMS):
        client.log_batch(stored.info.run_id, params=missing[start : start + BATCH_PARAMS])
    # MLflow params cannot be changed. Values that a resumed run has changed, such as the budget, are stored in tags.
    for key, value in wanted.items():
        tag = f"resumed.{key}"
        if present.get(key, value) != value and stored.data.tags.get(tag) != value:
            client.set_tag(stored.info.run_id, tag, value)


def _uploads(run: RunDirectory) -> dict[str, Any]:
    """Load the record of the files that were uploaded to MLflow.

    Returns a mapping with the keys `store` ({uri, run}: URI of MLflow's database or server, and the id of the run) and
    `files` (name of an uploaded file -> hash of its content). If the record is damaged, both are empty, and all files
    are uploaded again.
    """
    path = run.path / UPLOADS
    if path.exists():
        try:
            noted = read_mapping(path, "all files of the run are uploaded to MLflow again", ("store", "files"))
            if isinstance(noted["store"], dict) and isinstance(noted["files"], dict):
                return noted
        except UserError as damaged:
            log.warning("%s", damaged)
    return {"store": {}, "files": {}}


def _log_artifacts(client: MlflowClient, run: RunDirectory, run_id: str) -> None:
    """Upload files of the run directory that are new or have changed since their last upload."""
    noted, store = _uploads(run), {"uri": redact(client.tracking_uri), "run": run_id}
    if noted["store"] != store:
        noted = {"store": store, "files": {}}
        write_json(run.path / UPLOADS, noted)
    texts = (run.config, run.overrides, run.card, run.summary, run.lineage, run.code_diff)
    for path in (*texts, *sorted(run.media.glob("[!.]*")), *sorted(run.evaluations.glob("[!.]*"))):
        name = path.relative_to(run.path).as_posix()
        if not path.is_file() or noted["files"].get(name) == (digest := hashlib.sha256(path.read_bytes()).hexdigest()):
            continue
        if path in texts:
            client.log_text(run_id, redact(path.read_text(errors="replace")), name)
        else:
            client.log_artifact(run_id, str(path), path.parent.name)
        noted["files"][name] = digest
        write_json(run.path / UPLOADS, noted)


def _log_results(client: MlflowClient, run: RunDirectory, stored: Run) -> None:
    """Write the results of a run into the description of its MLflow run, unless a user has changed the description."""
    summary = run.read_summary()
    if not summary.get("eval"):
        return
    from flows.report.tables import summary_markdown

    results, present = summary_markdown(summary), stored.data.tags.get(NOTE) or ""
    ours = not present or present.splitlines()[0] == results.splitlines()[0]
    if ours and present != results:
        client.set_tag(stored.info.run_id, NOTE, results)


def _tag_stop(client: MlflowClient, stored: Run, ended: Event | None) -> None:
    """Set the tag `shepherd.stopped_by` to the stop condition that ended training; remove it if none did."""
    reason = str(ended["reason"]) if ended is not None and ended["status"] == "stopped_early" else None
    present = tag_value(stored.data.tags, STOPPED_BY)
    if reason is not None and present != reason:
        client.set_tag(stored.info.run_id, f"{PREFIX}{STOPPED_BY}", reason)
    elif reason is None and present is not None:  # the run was resumed with other conditions
        client.delete_tag(stored.info.run_id, f"{PREFIX}{STOPPED_BY}")


def _set_status(client: MlflowClient, stored: Run, ended: Event | None) -> None:
    """Set the status of the MLflow run, and its end time; the status is RUNNING if `ended` is None.

    `ended` is the event that records the end of training.
    """
    status = STATUS[ended["status"]] if ended is not None else "RUNNING"
    if stored.info.status == status:
        return
    if ended is not None:
        client.set_terminated(stored.info.run_id, status, int(ended["time"] * 1000))
    else:
        client.update_run(stored.info.run_id, status)

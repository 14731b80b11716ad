"""The MLflow run of a run directory: parameters, points, files, results and status, made from the event log.

What MLflow has already is not written again, so it does not matter when and how often `bring` is called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import rlcore
from flows.settings import artifact_root, own_store
from flows.tracking.mlflow_points import log_points
from flows.tracking.mlflow_store import connect, file_of, pages, prepare_store, store_uri, user
from flows.tracking.mlflow_sweep import PARENT, tags_of_trial
from flows.tracking.news import NewEvents
from flows.tracking.run_list import VIEW, view
from flows.tracking.tags import PREFIX, prefixed
from rlcore.config.values import spell
from rlcore.errors import RunError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import COMPLETE
from rlcore.store.series import Event
from rlcore.system.secrets import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_TAG = f"{PREFIX}run_id"
STATUS = dict.fromkeys(COMPLETE, "FINISHED")
STATUS |= {"interrupted": "KILLED", "pruned": "KILLED", "failed": "FAILED", "died": "KILLED"}
UPLOADS = ".mlflow/uploads.json"
BATCH_PARAMS = 100
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"  # its page opens on runs, not on traces
NOTE = "mlflow.note.content"  # MLflow's name for a run's description


def update_mlflow(run: RunDirectory, news: NewEvents) -> str:
    """Bring MLflow up to date with a run, whose lock the caller holds; gives the id of the run in MLflow.

    A `RunError` where somebody deleted the run or its experiment in MLflow (it is not made again behind their back), or
    where its files are with a server that is not there.
    """
    tree = run.read_config()
    uri = store_of(run)
    prepare_store(uri)
    client = connect(uri)
    found = find_run(client, run) or _create_run(client, run, tree, news)
    run_id = found.info.run_id
    if found.info.lifecycle_stage != "active":
        raise RunError(f"MLflow run {run_id} of {run.path} was deleted there; restore it to have it kept up to date")
    if _out_of_reach(found.info.artifact_uri or "", uri):
        raise RunError(
            f"MLflow run {run_id} of {run.path} was begun on a server that keeps its files; start that server and "
            "set MLFLOW_TRACKING_URI to it"
        )
    if PARENT not in found.data.tags:  # the sweep's run may be younger, or was not to be had
        for key, value in tags_of_trial(client, run).items():
            client.set_tag(run_id, key, value)
    _log_params(client, found, tree)
    known = news.notes.get("mlflow") == (client.tracking_uri, run_id)  # else it lacks what was brought elsewhere
    log_points(client, found, (news if known else news.everything()).points(), whole=not known)
    news.notes["mlflow"] = client.tracking_uri, run_id
    _log_artifacts(client, run, run_id)
    _log_results(client, run, found)
    _set_status(client, found, news.ended)
    return run_id


def store_of(run: RunDirectory) -> str:
    """The MLflow store of a run: the one that is chosen, else the file that it is in, also of another project.

    Whoever goes on with a run, or registers it, may sit in another checkout than the one that made it.
    """
    chosen, noted = store_uri(run.read_config()), _uploads(run)["store"].get("uri", "")
    there = file_of(noted)
    return noted if chosen == own_store() and there is not None and there.exists() else chosen


def find_run(client: MlflowClient, run: RunDirectory) -> Run | None:
    """The MLflow run of a run directory, also a deleted one: as noted there, else by its tag in all experiments."""
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
        if found := client.search_runs(experiments, query, run_view_type=ViewType.ALL, max_results=1):
            return found[0]
    return None


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config tree as MLflow params: `a.b.c` -> text of at most 500 characters."""
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
    """The id of the experiment in which a run of this config lies, made where it is not there."""
    name = tree["metric"]["logger"]["experiment_name"] or tree["exp_name"]
    return _experiment(client, name or f"{tree['algo']['name']}_{tree['env']['id']}", client.tracking_uri)


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None and _out_of_reach(experiment.artifact_location, uri):
        # A server that somebody started on our file keeps this one's files, and cannot be asked for them now.
        return _experiment(client, f"{name} (no server)", uri)
    if experiment is None:
        # A server decides itself where files go; for our own store we do.
        location = f"{artifact_root()}/{name.replace('/', '-')}" if uri.startswith("sqlite:") else None
        try:
            return client.create_experiment(name, artifact_location=location, tags={KIND: TRAINING, VIEW: view()})
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise RunError(f"exp_name={name}: that MLflow experiment was deleted; restore it there or choose another name")
    for tag, value in ((KIND, TRAINING), (VIEW, view())):
        if tag not in experiment.tags:  # made by hand, or by an earlier version
            client.set_experiment_tag(experiment.experiment_id, tag, value)
    return experiment.experiment_id


def _out_of_reach(artifacts: str, uri: str) -> bool:
    """Tell whether files are kept by a server, while the store is opened without one."""
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
                "version": rlcore.__version__,
                "run_dir": str(run.path.absolute()),
            }
        ),
        "mlflow.user": user(),
        "mlflow.source.name": "shepherd",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit,
    }


def _log_params(client: MlflowClient, found: Run, tree: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    wanted, there = flat(tree), found.data.params
    missing = [Param(key, value) for key, value in wanted.items() if key not in there]
    for start in range(0, len(missing), BATCH_PARAMS):
        client.log_batch(found.info.run_id, params=missing[start : start + BATCH_PARAMS])
    # MLflow params are written once; a resumed run may have changed a few (the budget): said in tags.
    for key, value in wanted.items():
        tag = f"resumed.{key}"
        if there.get(key, value) != value and found.data.tags.get(tag) != value:
            client.set_tag(found.info.run_id, tag, value)


def _uploads(run: RunDirectory) -> dict[str, Any]:
    """Notes of a mirror: `store` {uri, run}, where its run is in MLflow; `files` {name: hash}, uploaded there."""
    path = run.path / UPLOADS
    return json.loads(path.read_text()) if path.exists() else {"store": {}, "files": {}}


def _log_artifacts(client: MlflowClient, run: RunDirectory, run_id: str) -> None:
    """Upload files that are new or changed."""
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


def _log_results(client: MlflowClient, run: RunDirectory, found: Run) -> None:
    """The results as the run's description, unless a person wrote one."""
    summary = run.read_summary()
    if not summary.get("eval"):
        return
    from flows.report.tables import summary_markdown

    results, there = summary_markdown(summary), found.data.tags.get(NOTE) or ""
    ours = not there or there.splitlines()[0] == results.splitlines()[0]
    if ours and there != results:
        client.set_tag(found.info.run_id, NOTE, results)


def _set_status(client: MlflowClient, found: Run, ended: Event | None) -> None:
    """Say in MLflow how and when the run ended, or that it goes on."""
    status = STATUS[ended["status"]] if ended is not None else "RUNNING"
    if found.info.status == status:
        return
    if ended is not None:
        client.set_terminated(found.info.run_id, status, int(ended["time"] * 1000))
    else:
        client.update_run(found.info.run_id, status)

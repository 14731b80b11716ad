"""The MLflow mirror of a run: brought up to date from the event log, never on the training path.

The log in the run directory is the truth. `mirror` asks MLflow which points it has and writes the others, so it can be
called at any time, from any process, after a kill or after the store was away: every (metric, step) is there once.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlcore
from flows.process.files import file_hash, locked
from flows.settings import artifact_folder, configure_environment
from flows.tracking.background import note_failure
from flows.tracking.mlflow_store import connect, prepare_store, store_uri, user
from flows.tracking.points import Point, points
from rlcore.config.schema import spell
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import read_events

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

RUN_TAG = "shepherd.run_id"
STATUS = {"finished": "FINISHED", "stopped_early": "FINISHED", "dry_run": "FINISHED"}
STATUS |= {"interrupted": "KILLED", "failed": "FAILED"}
VALUE_LIMIT = 500
SERVED = "mlflow-artifacts:"
BATCH_METRICS = 1000  # the most MLflow takes in one call
BATCH_PARAMS = 100
NOTE = "mlflow.note.content"  # MLflow's name for a run's description
STAMP = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_(.+)")  # of the run names that we choose


def mirror(run: RunDirectory) -> str:
    """Bring MLflow up to date with a run's event log.

    Args:
        run: a run directory that holds config.yaml and run.json.

    Returns:
        The id of the run in MLflow.

    Raises:
        RunError: somebody deleted the run or its experiment in MLflow, and it is not made again behind their back; or
            its files are with a server that is not there.
    """
    configure_environment()
    tree = run.read_config()
    uri = store_uri(tree)
    prepare_store(uri)
    with locked(_own_folder(run) / "lock"):
        client = connect(uri)
        events = list(read_events(run.events))
        found = find_run(client, run) or _create_run(client, run, tree, events)
        run_id = found.info.run_id
        if found.info.lifecycle_stage != "active":
            raise RunError(
                f"MLflow run {run_id} of {run.path} was deleted there; restore it to have it kept up to date"
            )
        if _out_of_reach(found.info.artifact_uri or "", uri):
            raise RunError(
                f"MLflow run {run_id} of {run.path} was begun on a server that keeps its files; start that server and "
                "set MLFLOW_TRACKING_URI to it"
            )
        _log_params(client, found, tree)
        _log_points(client, found, points(events))
        _log_artifacts(client, run, run_id, uri)
        _log_results(client, run, found)
        _set_status(client, found, events)
    return run_id


def main(arguments: list[str]) -> int:
    """`python -m flows.tracking.mlflow_run RUN...`: mirror runs; a failure is a line in run.log and exit code 1.

    `--on-request RUN`: mirror it for every line on standard input, and answer each with `+` or, after a failure, `-`.
    """
    os.nice(10)  # training comes first on a small machine
    if arguments[:1] == ["--on-request"]:
        return _on_request(RunDirectory(arguments[1]))
    return max((_mirror_or_note(RunDirectory(argument)) for argument in arguments), default=0)


def _on_request(run: RunDirectory) -> int:
    answers = os.dup(1)
    os.dup2(2, 1)  # what MLflow prints is no answer
    while sys.stdin.buffer.readline():
        os.write(answers, b"-" if _mirror_or_note(run) else b"+")
    return 0


def _mirror_or_note(run: RunDirectory) -> int:
    from flows.tracking import files as mirrors  # it is made from this module's points

    reason = ""
    for pause in (0, 1, 3):  # another process may hold SQLite just now
        time.sleep(pause)
        try:
            mirrors.mirror(run, run.read_config()["metric"]["logger"]["name"])
            mirror(run)
            return 0
        except (RunError, UserError, OSError) as error:  # another try would meet the same
            reason = str(error)
            break
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    note_failure(run, reason)
    return 1


def find_run(client: MlflowClient, run: RunDirectory) -> Run | None:
    """The MLflow run of a run directory, deleted ones included, found by its tag whatever the experiment is called."""
    from mlflow.entities import ViewType

    experiments = [e.experiment_id for e in client.search_experiments(view_type=ViewType.ALL)]
    query = f"tags.`{RUN_TAG}` = '{run.read_identity()['run_id']}'"
    found = client.search_runs(experiments, query, run_view_type=ViewType.ALL, max_results=1)
    return found[0] if found else None


def experiment_name(tree: Mapping[str, Any]) -> str:
    """metric.logger.experiment_name, else exp_name, else `<algo>_<env id>`."""
    logger = (tree.get("metric") or {}).get("logger") or {}
    return logger.get("experiment_name") or tree.get("exp_name") or f"{tree['algo']['name']}_{tree['env']['id']}"


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config tree as MLflow params: `a.b.c` -> text of at most 500 characters."""
    params: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            params |= flat(value, f"{prefix}{key}.")
        else:
            params[f"{prefix}{key}"] = spell(value)[:VALUE_LIMIT]
    return params


def _own_folder(run: RunDirectory) -> Path:
    return run.path / ".mlflow"


def _create_run(client: MlflowClient, run: RunDirectory, tree: Mapping[str, Any], events: list[dict[str, Any]]) -> Run:
    start = next((int(e["time"] * 1000) for e in events if e["kind"] == "start"), None)
    # MLflow cuts long names at their end, where ours tell one run from another; the time comes last there.
    name = STAMP.sub(r"\2 \1", tree.get("run_name") or run.path.name)
    experiment = _experiment(client, experiment_name(tree), store_uri(tree))
    return client.create_run(experiment, start_time=start, tags=_tags(run, tree), run_name=name)


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None and _out_of_reach(experiment.artifact_location, uri):
        # A server that somebody started on our file keeps this one's files, and cannot be asked for them now.
        return _experiment(client, f"{name} (no server)", uri)
    if experiment is None:
        # A server decides itself where files go; for our own store we do.
        location = artifact_folder().as_uri() + f"/{name.replace('/', '-')}" if uri.startswith("sqlite:") else None
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise RunError(f"exp_name={name}: that MLflow experiment was deleted; restore it there or choose another name")
    return experiment.experiment_id


def _out_of_reach(artifacts: str, uri: str) -> bool:
    """Whether files are kept by a server, while the store is opened without one."""
    return artifacts.startswith(SERVED) and uri.startswith("sqlite:")


def _tags(run: RunDirectory, tree: Mapping[str, Any]) -> dict[str, str]:
    identity = run.read_identity()
    tags = {  # MLflow shows them in this order
        "algo": tree["algo"]["name"],
        "env_id": tree["env"]["id"],
        "seed": spell(tree["seed"]),
        **({"group": str(tree["group"])} if tree.get("group") else {}),
        "commit": spell(identity.get("commit", "unknown")),
        "dirty": spell(identity.get("dirty", "unknown")),
        RUN_TAG: identity["run_id"],
        "shepherd.version": rlcore.__version__,
        "shepherd.run_dir": str(run.path.absolute()),
        "mlflow.user": user(),
        "mlflow.source.name": "shepherd",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": spell(identity.get("commit", "unknown")),
    }
    chosen = ((tree.get("metric") or {}).get("logger") or {}).get("tags") or {}
    return {str(key): spell(value) for key, value in chosen.items()} | tags


def _log_params(client: MlflowClient, found: Run, tree: Mapping[str, Any]) -> None:
    from mlflow.entities import Param, RunTag

    wanted, there = flat(tree), found.data.params
    missing = [Param(key, value) for key, value in wanted.items() if key not in there]
    for start in range(0, len(missing), BATCH_PARAMS):
        client.log_batch(found.info.run_id, params=missing[start : start + BATCH_PARAMS])
    # MLflow params are written once; a resumed run may have changed a few (the budget): said in tags.
    changed = {f"resumed.{k}": v for k, v in wanted.items() if k in there and there[k] != v}
    news = [RunTag(key, value) for key, value in changed.items() if found.data.tags.get(key) != value]
    for start in range(0, len(news), BATCH_PARAMS):
        client.log_batch(found.info.run_id, tags=news[start : start + BATCH_PARAMS])


def _log_points(client: MlflowClient, found: Run, wanted: Iterator[Point]) -> None:
    run_id = found.info.run_id
    there = {name: {m.step for m in client.get_metric_history(run_id, name)} for name in found.data.metrics}
    missing = [_metric(*point) for point in wanted if point[3] not in there.get(point[0], ())]
    for start in range(0, len(missing), BATCH_METRICS):
        client.log_batch(run_id, metrics=missing[start : start + BATCH_METRICS])


def _metric(name: str, value: float, when: int, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(name, value, when, step)


def _log_artifacts(client: MlflowClient, run: RunDirectory, run_id: str, uri: str) -> None:
    """Upload files that are new or changed; what was uploaded where is remembered in the run directory."""
    import json

    memory = _own_folder(run) / "uploads.json"
    remembered = json.loads(memory.read_text()) if memory.exists() else {}
    store = {"uri": uri, "run": run_id}
    files = remembered["files"] if remembered.get("store") == store else {}
    single = [run.config, run.overrides, run.card, run.summary]
    folders = [path for folder in (run.media, run.evaluations) if folder.is_dir() for path in folder.iterdir()]
    for path in single + sorted(folders):
        if not path.is_file() or path.name.startswith("."):
            continue
        name, digest = path.relative_to(run.path).as_posix(), file_hash(path)
        if files.get(name) == digest:
            continue
        client.log_artifact(run_id, str(path), path.parent.relative_to(run.path).as_posix().strip(".") or None)
        files[name] = digest
        write_json(memory, {"store": store, "files": files})


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


def _set_status(client: MlflowClient, found: Run, events: list[dict[str, Any]]) -> None:
    status, ended = _status(events)
    if found.info.status == status:
        return
    if ended is not None:
        client.set_terminated(found.info.run_id, status, int(ended["time"] * 1000))
    else:
        client.update_run(found.info.run_id, status)


def _status(events: list[dict[str, Any]]) -> tuple[str, dict[str, Any] | None]:
    """MLflow's status of a run and the event that ended it, None while it runs.

    A finished run whose last stages are done again starts a trainer, which says `resume` and trains nothing: it stays
    finished until there are metrics beyond its end.
    """
    ended: dict[str, Any] | None = None
    for event in events:
        if event["kind"] == "end":
            ended = event
        elif ended is not None:
            again = event["kind"] == "resume" and STATUS[ended["status"]] != "FINISHED"
            beyond = event["kind"] in ("metrics", "checkpoint") and event["env_steps"] > ended["env_steps"]
            ended = None if again or beyond else ended
    return ("RUNNING", None) if ended is None else (STATUS[ended["status"]], ended)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

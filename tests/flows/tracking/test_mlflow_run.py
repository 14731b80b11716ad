"""Copy of event logs to MLflow in an SQLite file: it has every point once, also after kills and concurrent updates."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from flows.settings import WARM, artifact_root, own_store, tracking_uri
from flows.tracking import mirror, mlflow_points, mlflow_run
from flows.tracking.backends import update_backends
from flows.tracking.mlflow_run import flat, store_of
from flows.tracking.mlflow_store import connect, user
from rlcore.errors import RunError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import TOTALS, long_log, synthetic_run, train_a_while
from tests.processes import at_once
from tests.soaking import always, heavy

pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself warns when it is imported and used; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]


def stored(home: Path, mlflow_run: str) -> dict[tuple[str, int], list[float]]:
    """(metric, step) -> values, read directly from SQLite: an oracle independent of the code under test."""
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        rows = store.execute("select key, step, value from metrics where run_uuid = ?", (mlflow_run,)).fetchall()
    points: dict[tuple[str, int], list[float]] = {}
    for key, step, value in rows:
        points.setdefault((key, step), []).append(value)
    return points


def count_runs(home: Path, run_id: str) -> int:
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        query = "select count(*) from tags where key = 'shepherd.run_id' and value = ?"
        return store.execute(query, (run_id,)).fetchone()[0]


def expected(first: int, last: int) -> dict[tuple[str, int], list[float]]:
    return {
        (name, step): [value]
        for step in range(first, last, 100)
        for name, value in (
            ("Rewards/rew_avg", float(step)),
            ("Loss/policy_loss", -step / 7),
            ("Time/sps_train", 1e4),
        )
    }


@pytest.fixture(scope="module")
def mirrored(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Runs whose logs are copied to MLflow at the same time, before its database exists.

    Two runs are copied by one process each, and one by three processes.
    """
    (home / ".shepherd" / "mlflow.db").unlink(missing_ok=True)
    folder = tmp_path_factory.mktemp("mirrored")
    runs = {name: synthetic_run(folder / name, name) for name in ("a", "b", "together")}
    for run in runs.values():
        train_a_while(run, 0, 1000)
    programs = [copying(runs["a"]), copying(runs["b"]), *[copying(runs["together"])] * 3]
    assert at_once(IMPORTS, *programs) == [0] * 5
    return runs


IMPORTS = "import mlflow, flows.tracking.mirror"
DIES_AFTER_TWO_BATCHES = """
import os, signal
from flows.tracking import mlflow_points
mlflow_points.BATCH_ROWS = 7
insert, calls = mlflow_points._insert, []
def insert_then_die(database, run_id, batch):
    insert(database, run_id, batch)
    calls.append(batch)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
mlflow_points._insert = insert_then_die
"""


def copying(run: RunDirectory) -> str:
    """Return a program that copies the log of a run to MLflow."""
    return f"from flows.tracking import mirror; assert mirror.main([{str(run.path)!r}]) == 0"


def test_mirror_concurrent_processes_create_store(home: Path, mirrored: dict[str, RunDirectory]) -> None:
    runs = [mirrored[name] for name in ("a", "b")]
    assert [stored(home, update_backends(run)) for run in runs] == [expected(0, 1000)] * 2
    assert [count_runs(home, name) for name in ("a", "b")] == [1, 1]
    assert not [run.log.read_text() for run in runs if run.log.exists()]
    assert not (Path.cwd() / "mlruns").exists()


def test_mirror_concurrent_processes_write_points_once(home: Path, mirrored: dict[str, RunDirectory]) -> None:
    assert count_runs(home, "together") == 1
    assert stored(home, update_backends(mirrored["together"])) == expected(0, 1000)


@always
def test_mirror_killed_between_batches_writes_points_once(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "killed", "killed")
    train_a_while(run, 0, 1000)
    assert at_once(IMPORTS, DIES_AFTER_TWO_BATCHES + copying(run)) == [-signal.SIGKILL]
    ours = "(select run_uuid from tags where key = 'shepherd.run_id' and value = 'killed')"
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        (count,) = store.execute(f"select count(*) from metrics where run_uuid in {ours}").fetchone()
    assert 0 < count < 30
    assert stored(home, update_backends(run)) == expected(0, 1000)
    assert count_runs(home, "killed") == 1


def test_update_backends_growing_log_writes_points_once(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "repeated")
    for first in (0, 1000, 2000):
        train_a_while(run, first, first + 1000)
        mlflow_run = update_backends(run)
        assert update_backends(run) == mlflow_run
    assert stored(home, mlflow_run) == expected(0, 3000)
    assert count_runs(home, "repeated") == 1


def test_log_points_stores_same_rows_as_log_batch(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of_stores: list[list[tuple[object, ...]]] = []
    for known in (True, False):  # rows of ours, and MLflow's own
        run = synthetic_run(tmp_path / str(known), f"as log_batch {known}")
        for moment in range(3):
            steps = [300, 100, 200][moment]  # the latest is not the last
            EventLog(run.events).append("metrics", policy_steps=steps, values={"b": steps / 7, "c": 0.0})
        text = run.events.read_text().replace('"c": 0.0', '"c": 1e999')
        run.events.write_text(text)
        monkeypatch.setattr(mlflow_points, "_has_known_tables", lambda database, known=known: known)
        mlflow_run = update_backends(run)
        with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
            sql = "select key, value, step, is_nan from {} where run_uuid = ? order by key, step"
            rows = [store.execute(sql.format(table), (mlflow_run,)) for table in ("metrics", "latest_metrics")]
            rows_of_stores.append([tuple(row) for table in rows for row in table])
    assert rows_of_stores[0] == rows_of_stores[1]
    assert len(rows_of_stores[0]) == 6 + 2


def test_update_backends_long_log_needs_little_memory(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "of 3000 events")
    long_log(run, 3000)
    update_backends(synthetic_run(tmp_path / "first", "first"))  # imports MLflow
    tracemalloc.start()
    try:
        mlflow_run = update_backends(run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(stored(home, mlflow_run)) == 3000 * 15 + 30
    assert peak < 12_000_000  # all points in lists take 40 MB


def test_update_backends_recreates_run_lost_by_mlflow(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "lost")
    train_a_while(run, 0, 500)
    first = update_backends(run)
    train_a_while(run, 500, 700)
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            store.execute(f"delete from {table} where run_uuid = ?", (first,))
    again = update_backends(run)
    assert again != first
    assert stored(home, again) == expected(0, 700)


def test_update_backends_resumed_run_writes_points_once(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "resumed")
    train_a_while(run, 0, 800)
    update_backends(run)
    EventLog(run.events).append("resume", policy_steps=500)
    train_a_while(run, 500, 1000)
    assert stored(home, update_backends(run)) == expected(0, 1000)


def test_update_backends_reads_no_metric_history(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    asked: list[str] = []
    real = MlflowClient.get_metric_history
    monkeypatch.setattr(
        MlflowClient, "get_metric_history", lambda self, run, key: asked.append(key) or real(self, run, key)
    )
    run = synthetic_run(tmp_path / "run", "long")
    for first in (0, 1000, 2000):
        train_a_while(run, first, first + 1000)
        mlflow_run = update_backends(run)
    assert asked == []
    # After a larger budget, the best checkpoint may still be an earlier one; it may be evaluated on more episodes.
    evaluations = [(2000, 100, 5.0), (1000, 100, 7.0), (1000, 200, 6.0)]
    for policy_steps, episodes, mean in evaluations:
        EventLog(run.events).append(
            "evaluation", policy_steps=policy_steps, final=True, greedy={"mean": mean, "episodes": episodes}
        )
        update_backends(run)
    update_backends(run)
    assert asked == []
    test = {("Test/cumulative_reward", 1000): [6.0, 7.0], ("Test/cumulative_reward", 2000): [5.0]}
    assert {point: sorted(values) for point, values in stored(home, mlflow_run).items()} == expected(0, 3000) | test


def test_finish_mirror_completes_after_unavailable_store(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the store's folder should be")
    uri = f"sqlite:///{blocked}/mlflow.db"
    logger = {"log_level": 1, "logger": {"name": "mlflow", "experiment_name": None, "tracking_uri": uri}}
    run = synthetic_run(tmp_path / "run", "away", metric=logger)
    train_a_while(run, 0, 500)
    assert not mirror.finish_mirror(run)
    assert "MLflow is behind" in run.log.read_text()
    blocked.unlink()
    assert mirror.finish_mirror(run)
    with sqlite3.connect(blocked / "mlflow.db") as store:
        assert store.execute("select count(*), count(distinct key || step) from metrics").fetchone() == (15, 15)


@always
def test_update_backends_mirrors_params_tags_artifacts_status(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "whole", group="night shift", exp_name="cartpoles")
    log = EventLog(run.events)
    log.append("baseline", mean=22.5, std=1.0, ci95=[20.0, 25.0], episodes=100)
    log.append("evaluation", policy_steps=100, final=False, greedy={"mean": 50.0})
    log.append("evaluation", policy_steps=200, final=False, greedy={"mean": 60.0})
    log.append("evaluation", policy_steps=200, final=True, greedy={"mean": 480.0}, stochastic={"mean": 450.0})
    log.append("end", status="stopped_early", policy_steps=200, reason="target return")
    run.media.mkdir()
    run.curve.write_bytes(b"\x89PNG")
    run.inputs.write_bytes(b"\x89PNG of images")
    write_json(run.evaluations / "200.json", {"greedy": {"returns": [480.0]}})
    write_json(run.summary, {"policy_steps": 200})
    mlflow_run = update_backends(run)
    assert stored(home, mlflow_run) == {
        ("Evaluation/random_mean", 0): [22.5],
        ("Evaluation/greedy_mean", 100): [50.0],
        ("Evaluation/greedy_mean", 200): [60.0],
        ("Test/cumulative_reward", 200): [480.0],
        ("Test/cumulative_reward_stochastic", 200): [450.0],
    }
    client = connect(tracking_uri())
    found = client.get_run(mlflow_run)
    assert client.get_experiment(found.info.experiment_id).name == "cartpoles"
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["algo.optimizer.lr"] == "0.001"
    assert found.data.params["algo.mlp_keys.encoder"] == "['state']"
    assert found.data.params["init_from"] == "null"
    assert found.data.params["env.wrapper"] == "{}"
    tags = {key: value for key, value in found.data.tags.items() if not key.startswith("mlflow.")}
    assert tags == {
        "group": "night shift",
        "seed": "5",
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "shepherd.run_id": run.read_identity()["run_id"],
        "shepherd.commit": "c0ffee",
        "shepherd.dirty": "false",
        "shepherd.version": "0.2.0",
        "shepherd.run_dir": str(run.path),
        "shepherd.stopped_by": "target return",
    }
    assert min(found.data.metrics) == "Evaluation/greedy_mean"  # MLflow draws the charts in this order
    names = {a.path for f in ("", "media", "evaluations") for a in client.list_artifacts(mlflow_run, f or None)}
    assert {"config.yaml", "env_card.json", "summary.json"} <= names
    assert {"media/learning_curve.png", "media/inputs.png", "evaluations/200.json"} <= names


SUMMARY = TOTALS | {
    "eval": {"greedy": {"mean": 480.0, "ci95": [470.0, 490.0], "episodes": 100, "returns": [480.0]}},
    "baseline": None,
    "model": None,
}


def test_update_backends_keeps_description_of_user(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "described")
    client = connect(tracking_uri())

    def description() -> str | None:
        return client.get_run(update_backends(run)).data.tags.get("mlflow.note.content")

    write_json(run.summary, {"status": "training"})
    assert description() is None
    write_json(run.summary, SUMMARY)
    text = description()
    assert text is not None and "| greedy | 100 | 480.0 |" in text
    write_json(run.summary, SUMMARY | {"model": {"name": "mine", "version": 3, "aliases": ["champion"]}})
    text = description()
    assert text is not None and "mine version 3 (champion)" in text
    client.set_tag(update_backends(run), "mlflow.note.content", "the one with the longer rollouts")
    write_json(run.summary, SUMMARY)
    assert description() == "the one with the longer rollouts"


@pytest.mark.parametrize(
    ("folder", "chosen", "shown"),
    [
        ("ppo_CartPole-v1_42_2026-11-22", "ppo_CartPole-v1_42_2026-11-22", "ppo_CartPole-v1_42_2026-11-22"),
        ("acro", "ppo_CartPole-v1_42_2026-11-22", "acro"),
        ("mine/lr=1", "mine/lr=1", "mine/lr=1"),
        ("first/trial_0003/seed_7", "ppo_CartPole-v1_7_2026-11-22", "first/trial_0003/seed_7"),
        ("run", None, "run"),
    ],
)
def test_update_backends_names_run_like_folder(
    home: Path, tmp_path: Path, folder: str, chosen: str | None, shown: str
) -> None:
    run = synthetic_run(tmp_path / folder, f"named-{folder}-{chosen}", run_name=chosen)
    info = connect(tracking_uri()).get_run(update_backends(run)).info
    assert info.run_name == run.name == shown
    assert info.user_id == user()


def test_experiment_kind_defaults_to_model_development(home: Path, tmp_path: Path) -> None:
    client = connect(tracking_uri())
    kinds = []
    for number, name in enumerate(("ours", "by hand", "chosen")):
        if name != "ours":
            tags = {"mlflow.experimentKind": "genai_development"} if name == "chosen" else None
            client.create_experiment(name, artifact_location=(tmp_path / name).as_uri(), tags=tags)
        update_backends(synthetic_run(tmp_path / str(number), f"kind-{number}", exp_name=name))
        tags = client.get_experiment_by_name(name).tags
        kinds.append(tags["mlflow.experimentKind"])
        shown = json.loads(json.loads(tags["mlflow.sharedViewState.shepherd"])["state"])["columnOrder"]
        assert shown[0] == "metrics.`Test/cumulative_reward`"
        assert shown[2:5] == ["tags.`algo`", "tags.`env_id`", "tags.`seed`"]
    assert kinds == ["custom_model_development", "custom_model_development", "genai_development"]


def test_experiment_artifacts_go_to_configured_root(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_ARTIFACTS", str(tmp_path / "artifact store"))
    client = connect(tracking_uri())
    run = synthetic_run(tmp_path / "run", "elsewhere", exp_name="kept elsewhere")
    found = client.get_run(update_backends(run))
    assert list((tmp_path / "artifact store").rglob("config.yaml"))
    assert client.list_artifacts(found.info.run_id)
    monkeypatch.setenv("SHEPHERD_ARTIFACTS", "s3://bucket/folder")
    assert artifact_root() == "s3://bucket/folder"


@always
def test_run_status_follows_interrupt_and_resume(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "status")
    log, client = EventLog(run.events), connect(tracking_uri())
    seen = [client.get_run(update_backends(run)).info.status]
    for kind, fields in (
        ("end", {"status": "interrupted", "policy_steps": 10, "reason": "SIGTERM"}),
        ("resume", {"policy_steps": 10}),
        ("end", {"status": "failed", "policy_steps": 20, "reason": "NaN"}),
    ):
        log.append(kind, **fields)
        seen.append(client.get_run(update_backends(run)).info.status)
    assert seen == ["RUNNING", "KILLED", "RUNNING", "FAILED"]


def test_stop_condition_is_tag_until_run_is_resumed(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "stopped")
    log, client = EventLog(run.events), connect(tracking_uri())
    log.append("end", status="stopped_early", policy_steps=10, reason="upper_bound: Rewards/rew_avg = 5")
    assert client.get_run(update_backends(run)).data.tags["shepherd.stopped_by"] == "upper_bound: Rewards/rew_avg = 5"
    log.append("resume", policy_steps=10)
    log.append("end", status="finished", policy_steps=20, reason="finished")
    assert "shepherd.stopped_by" not in client.get_run(update_backends(run)).data.tags


def test_budget_changed_on_resume_is_tag(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "longer")
    update_backends(run)
    run.config.write_text(run.config.read_text().replace("total_steps: 4096", "total_steps: 8192"))
    client = connect(tracking_uri())
    data = client.get_run(update_backends(run)).data
    assert data.params["algo.total_steps"] == "4096"
    assert data.tags["resumed.algo.total_steps"] == "8192"


def test_store_of_keeps_store_of_project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is resumed or registered from another checkout. MLFLOW_TRACKING_URI has priority."""
    run = synthetic_run(tmp_path / "run", "elsewhere")
    first, theirs = update_backends(run), tracking_uri()
    train_a_while(run, 0, 500)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "checkout"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own_store())  # as `configure_environment` sets it
    assert store_of(run) == theirs
    assert update_backends(run) == first
    assert stored(home, first) == expected(0, 500)
    assert not (tmp_path / "checkout/.shepherd/mlflow.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////named.db")
    assert store_of(run) == "sqlite:////named.db"


def test_update_backends_never_recreates_deleted_run(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "deleted")
    client = connect(tracking_uri())
    client.delete_run(update_backends(run))
    with pytest.raises(RunError, match="deleted"):
        update_backends(run)
    assert count_runs(home, "deleted") == 1


def test_flat_truncates_values_too_long_for_mlflow() -> None:
    assert len(flat({"a": {"b": "x" * 9000}})["a.b"]) == 500


def test_update_backends_finds_run_among_1100_experiments(home: Path, tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", "one-of-many")
    mlflow_run = update_backends(run)
    later = int(time.time() * 1000) + 1_000_000  # MLflow lists the newest first
    rows = [(7_000_000 + i, f"many-{i}", "file:///nowhere", "active", later, later) for i in range(1100)]
    columns = "experiment_id, name, artifact_location, lifecycle_stage, creation_time, last_update_time"
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        store.executemany(f"insert into experiments ({columns}) values (?, ?, ?, ?, ?, ?)", rows)
    assert update_backends(run) == mlflow_run  # recorded in the run directory
    shutil.rmtree(run.path / ".mlflow")
    assert update_backends(run) == mlflow_run  # searched
    assert count_runs(home, "one-of-many") == 1


def test_finish_mirror_brief_run_starts_no_process(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WARM, raising=False)
    monkeypatch.setattr(mirror, "Mirror", None)  # no other process is started
    updated: list[str] = []
    monkeypatch.setattr(mirror, "update_backends", lambda run: updated.append(run.path.name))
    run = synthetic_run(tmp_path / "brief", "brief")
    assert mirror.finish_mirror(run) and updated == ["brief"]


def test_finish_mirror_hanging_store_times_out(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WARM, raising=False)
    answered = threading.Event()
    monkeypatch.setattr(mirror, "update_backends", lambda run: answered.wait(30))
    run = synthetic_run(tmp_path / "hanging", "hanging")
    assert not mirror.finish_mirror(run, timeout=0.1)
    assert "MLflow is behind: no answer in 0.1 s" in run.log.read_text()
    answered.set()


@pytest.mark.parametrize("text", ["", "{}", '{"store": [], "files": {}}', '{"store": {"uri": "x"}, "files": 7}'])
def test_uploads_of_damaged_record_are_empty(tmp_path: Path, text: str) -> None:
    run = synthetic_run(tmp_path / "run", "damaged")
    (run.path / mlflow_run.UPLOADS).parent.mkdir()
    (run.path / mlflow_run.UPLOADS).write_text(text)
    assert mlflow_run._uploads(run) == {"store": {}, "files": {}}

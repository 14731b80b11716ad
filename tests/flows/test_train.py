"""The training flow end to end: real Prefect, MLflow and trainer processes, on a budget of a few hundred steps."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.tracking.backends import update_backends
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import last_event, read_events
from tests.examples.test_guides import documented, logged
from tests.processes import changed, wait_for
from tests.rlcore.evaluation.test_video import read
from tests.soaking import always, heavy, soak
from tests.stores import query

pytestmark = [
    heavy,
    pytest.mark.slow,
    pytest.mark.usefixtures("warm"),
    # Prefect and MLflow themselves warn when they are imported; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]

TINY = [
    "exp=ppo",
    "env.capture_video=false",
    "env.num_envs=2",
    "algo.total_steps=1024",
    "algo.rollout_steps=64",
    "algo.update_epochs=1",
    "checkpoint.every=256",
    "checkpoint.keep_last=null",
    "evaluation.every=512",
    "evaluation.episodes=2",
    "evaluation.final_episodes=4",
    "evaluation.baseline_episodes=10",
    "metric.log_every=128",
]


@pytest.fixture(scope="module")
def api(home: Path) -> Iterator[str]:
    """One Prefect API for the module, started in the same way as by `run_flow`."""
    from prefect.settings import PREFECT_API_AUTH_STRING

    from flows.workers.local_api import prefect_api

    with prefect_api() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", url)  # else a command would start its own
        patch.setenv("PREFECT_API_AUTH_STRING", PREFECT_API_AUTH_STRING.value() or "")
        yield url


@pytest.fixture(autouse=True)
def mirrored_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs except `finished` are copied to MLflow once, at their end, and in this process."""
    monkeypatch.setattr("flows.workers.flow_run.mirror_in_background", lambda run, every=0.0, last=False: None)
    monkeypatch.setattr("flows.workers.flow_run.finish_mirror", update_backends)


def new_run(folder: Path, *overrides: str) -> RunDirectory:
    from flows.config.compose import compose
    from flows.runs.create import create_run

    typed = changed(TINY, *overrides, f"run_dir={folder}")
    return create_run(*compose(typed), typed)


@pytest.fixture(scope="module")
def finished(api: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, dict[str, Any], list[str]]:
    """A run that a deployment trained and registered; its summary; the kinds of events that listeners received."""
    from flows import train as training
    from flows.runs.listeners import subscribe

    emitted: list[str] = []
    folder = tmp_path_factory.mktemp("runs") / "finished"
    with subscribe(lambda kind, facts: emitted.append(kind)):
        result = training.train_ppo(overrides=TINY, run_dir=str(folder))
    run = RunDirectory(result["run_dir"])
    assert run.path == folder
    return run, run.read_summary(), emitted


def task_runs(home: Path, run: RunDirectory, wanted: int) -> Counter[tuple[str, str]]:
    """(kind, state) of the task runs of a run's flow runs; waits until Prefect has recorded them."""
    sql = """
        select task_run.name, task_run.state_type from task_run join flow_run on task_run.flow_run_id = flow_run.id
        where json_extract(flow_run.parameters, '$.run_dir') = ?
    """
    rows: list[tuple[str, str]] = []
    for _ in range(50):
        rows = query(home, sql, str(run.path))
        if len(rows) >= wanted and all(state in ("COMPLETED", "FAILED", "CRASHED") for _, state in rows):
            break
        time.sleep(0.2)
    return Counter((name.split()[0], state) for name, state in rows)


def test_make_env_caches_unchanged_environment(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    from flows import train as training

    run = new_run(tmp_path / "run", "algo.total_steps=256", "model_manager.disabled=true")
    training.train_ppo(run_dir=str(run.path))
    assert run.card.read_bytes() == finished[0].card.read_bytes()  # including the measured seconds
    assert (run.path / "env_card.md").exists()
    sql = "select state_name from task_run where name like 'make-env%' order by start_time"
    # The server records the state of a task after it has reported the state to the flow.
    wait_for(lambda: [name for (name,) in query(home, sql)][1:2] == ["Cached"], "a cached task", 30)


def kinds(run: RunDirectory) -> list[str]:
    return [event["kind"] for event in read_events(run.events)]


def final_digest(run: RunDirectory) -> str:
    return checkpoint.manifest(checkpoint.resolve(run, "latest"))["digest"]


@always
def test_train_flow_registers_model_and_writes_summary(
    finished: tuple[RunDirectory, dict[str, Any], list[str]],
) -> None:
    run, summary, emitted = finished
    assert summary == json.loads(run.summary.read_text())
    assert summary["status"] == "finished"
    assert summary["model"]["version"] == 1
    assert "challenger" in summary["model"]["aliases"]
    assert summary["eval"]["greedy"]["episodes"] == 4
    assert run.curve.read_bytes().startswith(b"\x89PNG")
    counted = Counter(kinds(run))
    assert (counted["start"], counted["baseline"], counted["end"], counted["registered"]) == (1, 1, 1, 1)
    assert set(emitted) == {"stage", "baseline", "progress", "checkpoint", "evaluation", "work", "registered"}


def test_event_log_page_documents_registration(finished: tuple[RunDirectory, dict[str, Any], list[str]]) -> None:
    assert logged(finished[0].events) <= documented()


@always
def test_train_flow_records_completed_task_per_stage(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]]
) -> None:
    run = finished[0]
    counted = Counter(kinds(run))
    wanted = {
        ("make-env", "COMPLETED"): 1,
        ("collect", "COMPLETED"): 1,
        ("checkpoint", "COMPLETED"): counted["checkpoint"],
        ("evaluate", "COMPLETED"): counted["evaluation"],
        ("register-model", "COMPLETED"): 1,
        ("summary", "COMPLETED"): 1,
    }
    found = task_runs(home, run, sum(wanted.values()) + 1)
    trained = found.pop(("train", "COMPLETED"))
    assert found == wanted
    assert trained == counted["checkpoint"]


@always
def test_train_flow_history_names_algorithm_environment_seed(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]]
) -> None:
    flow = query(
        home,
        """select flow.name, flow_run.name, flow_run.tags, flow_run.flow_version, flow_run.state_type
        from flow_run join flow on flow.id = flow_run.flow_id where json_extract(parameters, '$.run_dir') = ?""",
        str(finished[0].path),
    )
    assert len(flow) == 1
    name, run_name, tags, version, state = flow[0]
    assert (name, state) == ("train-ppo", "COMPLETED")
    assert run_name == finished[0].name == finished[0].path.name  # MLflow shows the same name
    assert set(json.loads(tags)) == {"ppo", "CartPole-v1", "seed=42"}
    assert version.startswith("0.2.0+")
    tasks = query(home, "select name, task_version from task_run where name like 'make-env%'")
    assert tasks[0][0] == "make-env ppo CartPole-v1"
    assert tasks[0][1] == version


@always
def test_train_flow_creates_progress_and_result_artifacts(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]]
) -> None:
    shown = {key: (kind, data) for key, kind, data in query(home, "select key, type, data from artifact")}
    assert {key: kind for key, (kind, _) in shown.items()} == {
        "progress-ppo-cartpole-v1": "progress",
        "results-ppo-cartpole-v1": "table",
        "report-ppo-cartpole-v1": "markdown",
        "learning-curve-ppo-cartpole-v1": "image",
    }
    assert float(shown["progress-ppo-cartpole-v1"][1]) == 100.0
    assert "random baseline" in shown["results-ppo-cartpole-v1"][1]


@always
def test_train_flow_mirrors_points_once_to_mlflow(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]]
) -> None:
    from rlcore.store.series import points

    run = finished[0]
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        run_id = run.read_identity()["run_id"]
        sql = "select runs.run_uuid, runs.status from runs join tags using (run_uuid) where tags.value = ?"
        mlflow_run, status = store.execute(sql, (run_id,)).fetchone()
        sql = "select key, step from metrics where run_uuid = ?"
        counts = Counter(store.execute(sql, (mlflow_run,)).fetchall())
    assert status == "FINISHED"
    assert counts == Counter((name, step) for name, _, _, step in points(list(read_events(run.events))))


def test_film_every_evaluation_keeps_digest(
    finished: tuple[RunDirectory, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    from flows import train as training

    filmed = ("env.capture_video=true", "evaluation.film=every", "model_manager.disabled=true")
    run = new_run(tmp_path / "filmed", *filmed)
    summary = training.run_flow(run)
    evaluated = [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "evaluation" and not e["final"]]
    films = {path.name: read(path)[2] for path in run.media.glob("*.mp4")}
    assert len(evaluated) == 2 and {*films} == {"policy.mp4", *(f"policy_{steps}.mp4" for steps in evaluated)}
    assert all(len(frames) > 5 for frames in films.values())  # no pole falls earlier
    assert summary["video"] == "media/policy.mp4"
    assert final_digest(run) == final_digest(finished[0])


@always
def test_run_flow_finished_run_does_nothing(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    from flows import train as training

    run, before, _ = finished
    again = training.run_flow(run)
    assert again["model"] == before["model"]
    assert again["status"] == "finished"
    counted = Counter(kinds(run))
    assert (counted["start"], counted["baseline"], counted["end"], counted["registered"]) == (1, 1, 1, 1)
    assert sum(1 for e in read_events(run.events) if e["kind"] == "evaluation" and e["final"]) == 1


def final_events(run: RunDirectory) -> list[dict[str, Any]]:
    return [e for e in read_events(run.events) if e["kind"] == "evaluation" and e["final"]]


def test_resume_finished_run_with_more_episodes_or_steps(
    home: Path, api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows import train as training
    from flows.cli import main as cli
    from flows.registry import models as registry
    from flows.runs.create import change_run
    from flows.settings import tracking_uri
    from flows.tracking.mlflow_store import connect

    name = "model_manager.models.agent.model_name=longer"
    # Never evaluated during training: there is no best checkpoint, so the latest one is used.
    run = new_run(tmp_path / "longer", "algo.total_steps=512", "algo.anneal_lr=false", "evaluation.every=4096", name)
    before, trained = training.run_flow(run), final_digest(run)
    first = before["policy_steps"]
    assert 400 < first <= 512
    # Other episodes: evaluated again, but not trained.
    assert cli.main(["resume", str(run.path), "evaluation.final_episodes=7"]) == 0
    after = run.read_summary()
    for mode in ("greedy", "stochastic"):
        assert (before["eval"][mode]["episodes"], after["eval"][mode]["episodes"]) == (4, 7)
    # The environments have the same seeds and a greedy policy adds no noise, so the first four episodes are the same.
    assert after["eval"]["greedy"]["returns"][:4] == before["eval"]["greedy"]["returns"]
    assert [e["greedy"]["episodes"] for e in final_events(run)] == [4, 7]
    assert (after["status"], after["policy_steps"], final_digest(run)) == ("finished", first, trained)
    assert cli.main(["resume", str(run.path)]) == 0
    assert len(final_events(run)) == 2
    # A larger budget: not finished until it is used up, and then with new results.
    change_run(run, ["algo.total_steps=1024"])  # as if the process was killed here
    assert run.read_summary()["status"] == "training"
    capsys.readouterr()
    assert cli.main(["resume", str(run.path), "algo.total_steps=1024"]) == 0
    assert "already finished" not in capsys.readouterr().out
    summary, newest = run.read_summary(), checkpoint.resolve(run, "latest")
    last = summary["policy_steps"]
    assert 512 < last <= 1024
    assert (summary["status"], newest.name) == ("finished", str(last))
    assert summary["checkpoint"] == final_events(run)[-1]["checkpoint"] == f"checkpoints/{last}"
    assert [e["policy_steps"] for e in final_events(run)] == [first, first, last]
    ends = {(e["status"], e["policy_steps"]) for e in read_events(run.events) if e["kind"] == "end"}
    assert ends == {("finished", first), ("finished", last)}
    assert summary["model"]["version"] == 2
    version = connect(tracking_uri()).get_model_version("longer", "2")
    assert version.tags["shepherd.checkpoint_digest"] == final_digest(run)
    assert registry.run_of("models:/longer/2") == newest


def test_dry_run_registers_nothing(home: Path, api: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from flows.cli import main as cli

    run = RunDirectory(tmp_path / "dry")
    assert cli.main(["train", *TINY, "dry_run=true", f"run_dir={run.path}"]) == 0
    output = capfd.readouterr()
    assert "not registered" in output.out
    assert "not registered: dry_run=true" in output.err
    summary = run.read_summary()
    assert (summary["status"], summary["model"]) == ("dry_run", None)
    assert summary["policy_steps"] < 512
    baseline, final = (last_event(read_events(run.events), kind) for kind in ("baseline", "evaluation"))
    assert baseline and final
    assert (baseline["episodes"], final["greedy"]["episodes"]) == (2, 2)
    assert [(e["status"], e["reason"]) for e in read_events(run.events) if e["kind"] == "end"] == [("dry_run",) * 2]
    assert cli.main(["stage", "register-model", str(run.path)]) == 0
    assert json.loads(capfd.readouterr().out)["version"] is None
    assert cli.main(["resume", str(run.path)]) == 0
    assert "already finished" in capfd.readouterr().out
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        run_uuids = "(select run_uuid from tags where value = ?)"
        run_id = (run.read_identity()["run_id"],)
        assert store.execute(f"select status from runs where run_uuid in {run_uuids}", run_id).fetchall() == [
            ("FINISHED",)
        ]
        versions = f"select count(*) from model_versions where run_id in {run_uuids}"
        assert store.execute(versions, run_id).fetchone() == (0,)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (["early_stop.target_return=1"], "upper_bound"),
        pytest.param(["early_stop.patience=1", "early_stop.min_delta=1e6"], "stops_increasing", marks=soak),
    ],
    ids=["target_return", "patience"],
)
def test_early_stop_evaluates_and_registers_model(api: str, tmp_path: Path, rule: list[str], reason: str) -> None:
    from flows import train as training

    # Evaluated after 256 and 512 steps: any return reaches 1 at the first, and none improves by 1e6 at the second.
    run = new_run(tmp_path / reason, *rule, "evaluation.every=256", f"model_manager.models.agent.model_name={reason}")
    summary = training.run_flow(run)
    evaluated = [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "evaluation" and not e["final"]]
    assert len(evaluated) == {"upper_bound": 1, "stops_increasing": 2}[reason]
    assert evaluated[-1] < 1024
    assert (summary["status"], summary["policy_steps"]) == ("stopped_early", evaluated[-1])
    ends = [(e["status"], e["reason"], e["policy_steps"]) for e in read_events(run.events) if e["kind"] == "end"]
    assert ends == [("stopped_early", summary["stopped_by"], evaluated[-1])]
    assert summary["stopped_by"].startswith(f"{reason}: Evaluation/greedy_mean")
    assert summary["eval"]["greedy"]["episodes"] == 4
    assert summary["model"]["version"] == 1


def test_run_test_false_registers_without_evaluation(
    api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows import train as training
    from flows.report.tables import summary_table
    from flows.report.terminal import show

    run = new_run(tmp_path / "untested", "algo.run_test=false", "model_manager.models.agent.model_name=untested")
    summary = training.run_flow(run)
    assert final_events(run) == []
    assert summary["eval"] == {"greedy": None, "stochastic": None}
    assert (summary["status"], summary["model"]["version"]) == ("finished", 1)
    show(summary_table(summary, run))
    table = capsys.readouterr().out
    assert "random baseline" in table
    assert "greedy" not in table
    assert summary["checkpoint"] == str(checkpoint.choose(run).relative_to(run.path))


@always
def test_killed_trainer_restarts_with_same_digest(
    home: Path, finished: tuple[RunDirectory, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    from flows import train as training
    from flows.runs.listeners import subscribe
    from flows.runs.trainer import trainer_for

    run, killed = new_run(tmp_path / "killed"), []

    def kill_once(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress" and facts["policy_steps"] > 600 and not killed:
            process = trainer_for(run).process
            killed.append(process.pid)
            process.kill()
            process.wait()

    with subscribe(kill_once):
        summary = training.run_flow(run)
    assert len(killed) == 1
    assert summary["status"] == "finished"
    assert final_digest(run) == final_digest(finished[0])
    counted = Counter(kinds(run))
    wanted = counted["checkpoint"] * 2 + counted["evaluation"] + 4
    repeated = task_runs(home, run, wanted)["train", "COMPLETED"] - counted["checkpoint"]
    if repeated == 1:
        return  # its boundary was already in the pipe: the checkpoint was lost, and that segment was trained again
    # As many train tasks as in the uninterrupted run: Prefect has retried one.
    assert repeated == 0
    attempts = """
        select max(task_run.run_count) from task_run join flow_run on task_run.flow_run_id = flow_run.id
        where json_extract(flow_run.parameters, '$.run_dir') = ? and task_run.name like 'train %'
    """
    assert query(home, attempts, str(run.path)) == [(2,)]


def test_run_flow_removes_run_refused_by_make_env(api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import train as training

    calls = []

    def refuse(run: RunDirectory) -> None:
        calls.append(run)
        raise UserError("env.id=MetaTensors-v0: no such environment")

    monkeypatch.setattr("flows.stages.make_env.measure", refuse)
    run = new_run(tmp_path / "mistake", "env.action_repeat=3")  # no card of it is cached
    with pytest.raises(UserError, match="MetaTensors-v0"):
        training.run_flow(run)
    assert len(calls) == 1
    assert [*tmp_path.iterdir()] == []  # the run is new, so its folder is removed


def test_train_deployment_refuses_unknown_key(api: str, tmp_path: Path) -> None:
    from flows import train as training

    with pytest.raises(UserError, match=r"algo\.gama"):
        training.train_ppo(overrides=["exp=ppo", "algo.gama=0.9"], run_dir=str(tmp_path / "wrong"))
    assert not (tmp_path / "wrong").exists()


def test_train_deployment_checks_overrides_of_existing_run(api: str, tmp_path: Path) -> None:
    from flows import train as training

    run = new_run(tmp_path / "run", "algo.total_steps=128", "algo.run_test=false")
    for wrong, sentence in (
        ("env.id=Acrobot-v1", "this run was started with env.id=CartPole-v1"),
        ("nonsense", "no value"),
    ):
        with pytest.raises(UserError, match=sentence):
            training.train_ppo(overrides=[wrong], run_dir=str(run.path))
    assert not run.events.exists()
    with pytest.raises(UserError, match="metric.log_every=-1"):
        training.train_ppo(overrides=["metric.log_every=-1"], run_dir=str(run.path))
    training.train_ppo(overrides=["model_manager.disabled=true"], run_dir=str(run.path))
    assert run.read_summary()["status"] == "finished"
    assert run.read_summary()["model"] is None


def test_interrupt_at_task_start_ends_run(
    home: Path, api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import train as training
    from flows.process.signals import TrainingInterrupted
    from flows.runs.trainer import trainer_for

    def interrupted(*arguments: Any) -> None:
        trainer_for(run).advance()
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except TrainingInterrupted:
            raise ValueError(
                "Task run is not set"
            ) from None  # as Prefect 3.8 does if the signal comes while a task starts

    run = new_run(tmp_path / "run")
    monkeypatch.setattr(training, "advance", interrupted)
    with pytest.raises(TrainingInterrupted):
        training.run_flow(run)
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"][-1] == "interrupted"
    assert int(checkpoint.resolve(run, "latest").name) > 0


def test_interrupt_during_registration_resumes_registration(
    home: Path, api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows import train as training
    from flows.cli import main as cli
    from flows.compare.records import from_directory
    from flows.process.signals import TrainingInterrupted

    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    run = new_run(tmp_path / "late", "algo.total_steps=256", "model_manager.models.agent.model_name=late")
    with monkeypatch.context() as patch, pytest.raises(TrainingInterrupted):
        patch.setattr(training, "register_model", interrupted)
        training.run_flow(run)
    assert (from_directory(run).status, run.read_summary()["model"]) == ("finished", None)
    trained = final_digest(run)
    assert cli.main(["resume", str(run.path)]) == 0
    assert "nothing to do" not in capfd.readouterr().out
    assert (run.read_summary()["model"]["name"], final_digest(run)) == ("late", trained)
    counted = Counter(kinds(run))
    assert (counted["end"], counted["registered"], len(final_events(run))) == (1, 1, 1)
    assert cli.main(["resume", str(run.path)]) == 0
    assert "already finished" in capfd.readouterr().out

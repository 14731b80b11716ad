"""`make up`, deployments on a worker, kills and cancellation, `make down`: real servers on loopback."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.config.compose import compose
from flows.report.sentences import result_line
from flows.runs.create import create_run
from flows.stages.make_env import make_env
from flows.workers.dotenv import NAMES
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests import processes
from tests.flows.compare.runs import group_of
from tests.flows.workers.site import Site
from tests.kills import workers
from tests.processes import changed, count, digest, finish_here, wait_for
from tests.soaking import always, heavy, soak
from tests.stores import furnish, query

pytestmark = [pytest.mark.slow, heavy]
SMALL = [
    "algo.rollout_steps=64",
    "algo.total_steps=6000",
    "algo.update_epochs=4",
    "env.capture_video=false",
    "checkpoint.every=1000",
    "evaluation.every=3000",
    "evaluation.final_episodes=3",
    "evaluation.baseline_episodes=3",
    "seed=5",
]


# To be interrupted; a process that has made 4,000 steps is slow, and leaves the processor to what interrupts it.
LONG = changed(
    SMALL,
    "env.id=Faulty-v0",
    "env.num_envs=1",
    "algo.update_epochs=1",
    "algo.total_steps=2000000",
    "algo.compile=false",
    "checkpoint.every=1000000",
    "evaluation.every=1000000",
    "metric.log_every=64",
)
SLOW = {"SHEPHERD_PLUGINS": "tests.faults.faulty_envs", "FAULT": "slow:step:4000"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), **SLOW)
    (site.home / ".env").write_text("SHEPHERD_LOCAL_LIMIT=3\n")
    furnish(site.home)
    site.servers("up")
    yield site
    site.servers("down")
    assert not site.processes("")


@dataclass(frozen=True)
class Killed:
    """A flow run whose process was killed while it trained, watched from a terminal; then it was retried to its end.

    Attributes:
        flow_run: its id.
        run: its run directory.
        watched: what the terminal showed until the kill, in one line.
        crashed: its state after the kill.
        ended: its state at its end.
    """

    flow_run: str
    run: RunDirectory
    watched: str
    crashed: str
    ended: str


@pytest.fixture(scope="module")
def killed(site: Site) -> Killed:
    overrides = f"overrides={json.dumps(SMALL)}"
    with ThreadPoolExecutor(1) as terminal:
        shown = terminal.submit(
            site.prefect, "deployment", "run", "train-ppo/default", "-p", overrides, "--watch", code=1
        )
        wait_for(lambda: list((site.home / "runs").rglob("run.json")), "the run directory", every=0.1)
        (identity,) = (site.home / "runs").rglob("run.json")
        flow_run = RunDirectory(identity.parent).read_identity()["flow_run"]
        run = site.trained(flow_run)
        (engine,) = site.processes("prefect.engine")
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: not site.processes("rlcore.train.server"), "the trainer's end", 2.0, every=0.1)
        crashed = site.ended(flow_run, 120)[0]
        watched = " ".join(shown.result().split())
    site.prefect("flow-run", "retry", flow_run)
    return Killed(flow_run, run, watched, crashed, site.ended(flow_run)[0])


@dataclass(frozen=True)
class Pair:
    """Two flow runs that train at once, for long, on one worker."""

    cancelled: str
    orphaned: str
    runs: list[RunDirectory]


@soak
def test_a_run_is_reproduced_on_a_worker(site: Site, killed: Killed) -> None:
    shown = site.prefect("deployment", "run", "reproduce/default", "-p", f"source={killed.run.path}", "--watch")
    again = RunDirectory(killed.run.path.with_name(f"{killed.run.path.name}_again"))
    assert digest(again) == digest(killed.run)
    (flow_run,) = site.ask("flow_runs/filter", flows={"name": {"any_": ["reproduce"]}})
    state, message = site.state(flow_run["id"])
    assert (state, message.startswith("identical, ")) == ("COMPLETED", True), message
    assert "no known differences from the original" in site.told(flow_run["id"])
    assert "identical, " in " ".join(shown.split())


@pytest.fixture(scope="module")
def pair(site: Site) -> Pair:
    flow_runs = [site.submit(*LONG), site.submit(*LONG)]
    runs = [site.run(flow_run) for flow_run in flow_runs]
    assert runs[0].path != runs[1].path
    wait_for(lambda: all(count(run, "metrics") for run in runs), "both to train", every=0.1)
    return Pair(*flow_runs, runs)


@always
def test_up_tells_where_everything_is_and_keeps_what_runs(site: Site) -> None:
    before = {word: site.processes(word) for word in ("prefect", "mlflow")}
    again = site.servers("up")
    assert again.count("already running") == 3
    assert f"http://127.0.0.1:{site.variables['SHEPHERD_MLFLOW_PORT']}" in again
    assert "no GPU here: flow runs wait" in again or site.processes("gpu")
    assert {word: site.processes(word) for word in before} == before
    lines = (site.home / ".env").read_text().splitlines()
    assert lines[0] == "SHEPHERD_LOCAL_LIMIT=3"
    assert [line.partition("=")[0] for line in lines[2:-1]] == list(NAMES)


def test_a_deployment_has_a_form_and_the_commit_as_its_version(site: Site) -> None:
    deployment = site.ask("deployments/name/train-ppo/default")
    properties = deployment["parameter_openapi_schema"]["properties"]
    assert "shepherd train" in properties["overrides"]["description"]
    assert "an existing run to resume" in properties["run_dir"]["description"]
    assert deployment["version"]
    assert site.ask("deployments/name/train-ppo/gpu")["work_pool_name"] == "gpu"


@always
def test_a_flow_run_ends_in_a_registered_model_and_its_log_tells_how(site: Site, killed: Killed) -> None:
    assert killed.ended == "COMPLETED"
    assert killed.run.read_summary()["model"]["version"] == 1
    names = [task["name"] for task in site.ask("task_runs/filter", limit=200, offset=0)]
    for stage in ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model"):
        assert any(name.startswith(f"{stage} ppo CartPole-v1") for name in names), stage
    assert "final evaluation" in site.told(killed.flow_run)  # what it told just before the kill went with it
    # `--watch` ends with the state's message; here it ended with the kill.
    assert site.state(killed.flow_run) == ("COMPLETED", result_line(killed.run.read_summary()))
    assert "Crashed" in killed.watched


def test_a_killed_flow_run_is_retried_to_the_bits_of_an_undisturbed_one(
    site: Site, killed: Killed, tmp_path: Path
) -> None:
    assert killed.crashed == "CRASHED"
    history = [state["type"] for state in site.ask(f"flow_run_states/?flow_run_id={killed.flow_run}")]
    assert history.count("CRASHED") == 1  # Prefect's own worker would report it again, and undo the retry
    assert site.run(killed.flow_run).path == killed.run.path
    assert count(killed.run, "resume") == 1
    assert "resuming from its checkpoint at" in site.told(killed.flow_run)
    typed = ["exp=ppo", *SMALL, f"run_dir={tmp_path / 'undisturbed'}"]
    undisturbed = create_run(*compose(typed), typed)
    make_env(undisturbed)
    assert digest(killed.run) == finish_here(undisturbed)


@always
def test_nobody_without_the_password_gets_an_answer_and_it_is_kept_in_two_private_files(
    site: Site, killed: Killed
) -> None:
    for key, path in (("PREFECT", "/api/deployments/filter"), ("MLFLOW", "/api/2.0/mlflow/registered-models/search")):
        url = f"http://127.0.0.1:{site.variables[f'SHEPHERD_{key}_PORT']}{path}"
        body = b"{}" if key == "PREFECT" else None
        with pytest.raises(HTTPError, match="401"):
            urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=30)
    password = site.dotenv()["MLFLOW_TRACKING_PASSWORD"]
    assert password
    holders = [path for path in site.home.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]
    assert {path.relative_to(site.home).as_posix() for path in holders} == {".env", ".shepherd/servers/password"}


@always
def test_a_mistake_fails_the_flow_run_with_its_sentence(site: Site) -> None:
    flow_run = site.submit("env.id=CartPol-v1")
    kind, message = site.ended(flow_run)
    assert kind == "FAILED"
    assert site.ask(f"flow_runs/{flow_run}")["name"].startswith("train ppo 20")
    wait_for(lambda: message in site.told(flow_run, level=logging.ERROR), "the line of the log", every=0.3)
    assert message.startswith("env.id=CartPol-v1: no such environment; did you mean 'CartPole-v1'?")
    wait_for(lambda: not site.processes("prefect.engine"), "the end of its process", every=0.1)
    assert "Traceback" not in (site.home / ".shepherd/servers/worker-local.log").read_text()


def test_a_comparison_ends_in_its_verdict(site: Site) -> None:
    for group, shift in (("low", 0.0), ("high", 90.0)):
        group_of(site.home / "compared", group, [100 + shift + seed for seed in range(10)])
    good = site.start("compare/default", sides=["low", "high"], out="compared/report", runs="compared")
    headline = "high is significantly better than low on CartPole-v1."
    assert site.ended(good) == ("COMPLETED", headline)
    assert headline in (site.home / "compared/report/index.html").read_text()
    shown = site.ask("artifacts/filter", limit=200, offset=0)
    kinds = Counter(artifact["type"] for artifact in shown if artifact["flow_run_id"] == good)
    assert kinds == {"markdown": 1, "image": 6}


def test_a_sweep_ends_by_itself_though_its_worker_is_killed(site: Site) -> None:
    """While a trial is about to run or while it runs, as is drawn; tests/kills/workers.py does it twenty times each."""
    seed = int.from_bytes(os.urandom(4))
    record = workers.killed(site, [workers.KINDS[seed % len(workers.KINDS)]], seed, 0)
    assert not record["wrong"], record


@soak
def test_a_cancelled_sweep_ends_when_its_trials_have(site: Site) -> None:
    long = [line for line in LONG if not line.startswith("seed=")]
    wanted = ["exp=ppo", "algo.gamma=choice(0.9,0.99)", "sweep.trials=2", "sweep.workers=1", "sweep.confirm_seeds=0"]
    flow_run = site.start("sweep-ppo/default", overrides=[*wanted, *long, "sweep.name=cancelled"])
    begun = wait_for(lambda: workers.trials_of(site, "cancelled"), "a trial", every=0.3)
    wait_for(lambda: site.state(begun[0]["id"])[0] == "RUNNING", "a trial that runs", every=0.3)
    site.prefect("flow-run", "cancel", flow_run)
    assert site.ended(flow_run, 60)[0] == "CANCELLED"
    assert [run["state_type"] for run in workers.trials_of(site, "cancelled")] == ["CANCELLED"]
    runs = [RunDirectory(path.parent) for path in (site.home / "runs/sweeps/cancelled").rglob("run.json")]
    assert [run.is_taken() for run in runs] == [False]


def test_a_cancelled_flow_run_keeps_a_checkpoint_and_another_beside_it_goes_on(site: Site, pair: Pair) -> None:
    site.prefect("flow-run", "cancel", pair.cancelled)
    assert site.ended(pair.cancelled, 60)[0] == "CANCELLED"
    # No checkpoint was due: the one that is there was made because of the cancellation.
    saved = checkpoint.newest_good(pair.runs[0].checkpoints)
    assert saved is not None
    goes_on = f"retry {pair.cancelled}` resumes the run from its checkpoint at {int(saved.name):,} policy steps"
    assert goes_on in site.told(pair.cancelled)
    assert "Crash detected" not in site.told(pair.cancelled)
    assert site.state(pair.orphaned)[0] == "RUNNING"


@soak
def test_a_run_that_a_flow_run_trains_is_refused_to_another_and_keeps_its_config(site: Site, pair: Pair) -> None:
    run = pair.runs[1]
    kind, message = site.ended(site.submit("metric.log_every=128", run_dir=str(run.path)))
    assert (kind, message.partition(": pid ")[0]) == ("FAILED", str(run.path))  # "… is writing this run"
    assert run.read_config()["metric"]["log_every"] == 64


@soak
def test_a_flow_run_that_loses_its_worker_ends_and_is_retried_by_the_worker_that_comes_by_itself(
    site: Site, pair: Pair
) -> None:
    run = pair.runs[1]
    (worker,) = (p.pid for p in processes.processes(site.home) if p.kind == "worker")
    os.kill(worker, signal.SIGKILL)
    assert site.ended(pair.orphaned)[0] == "CRASHED"
    wait_for(lambda: not site.processes("prefect.engine") + site.processes("rlcore.train"), "the end of all", 30)
    saved = checkpoint.newest_good(run.checkpoints)
    assert saved is not None
    site.prefect("flow-run", "retry", pair.orphaned)
    wait_for(lambda: count(run, "resume"), "the retry", every=0.1)
    assert [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "resume"] == [int(saved.name)]


@always
def test_a_planted_command_is_not_run(site: Site, tmp_path: Path) -> None:
    """Deployments and job variables that somebody wrote into the database are refused."""
    command = {"command": f"touch {tmp_path}/run"}
    ours = site.ask("deployments/name/train-ppo/default")
    place = {key: ours[key] for key in ("flow_id", "work_pool_name", "work_queue_name", "entrypoint", "pull_steps")}
    planted = site.ask("deployments/", name="planted", job_variables=command, **place)["id"]
    due = {"state": {"type": "SCHEDULED"}}
    for deployment, own, said in (
        (planted, {}, "defines no deployment planted"),
        (ours["id"], {"job_variables": command}, "change command"),
    ):
        flow_run = site.ask(f"deployments/{deployment}/create_flow_run", **due, **own)["id"]
        state, message = site.ended(flow_run)
        assert state == "FAILED" and said in message
    assert not list(tmp_path.iterdir())


@soak
def test_training_goes_on_while_the_server_is_away(site: Site) -> None:
    # A boundary asks the server.
    rare = ("algo.total_steps=40000", "algo.compile=false", "checkpoint.every=2500", "evaluation.every=20000")
    flow_run = site.submit(*changed(SMALL, *rare))
    run = site.trained(flow_run)
    (server,) = site.processes("flows.workers.prefect_app")
    os.kill(server, signal.SIGKILL)
    before = count(run, "checkpoint")
    wait_for(lambda: count(run, "checkpoint") >= before + 3, "three more checkpoints", 30)
    time.sleep(float(os.environ.get("SERVER_AWAY", "5")))
    site.servers("up")
    assert site.ended(flow_run)[0] == "COMPLETED"
    assert run.read_summary()["status"] == "finished"
    assert count(run, "resume") == 0


@soak
def test_a_training_can_be_cancelled_after_the_server_was_away(site: Site) -> None:
    flow_run = site.submit(*LONG)
    run = site.run(flow_run)
    wait_for(lambda: count(run, "metrics"), "the training", every=0.3)
    for pid in site.processes("flows.workers.prefect_app"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(70)  # Prefect's worker asks for the last time after fifty
    site.servers("up")
    site.prefect("flow-run", "cancel", flow_run)
    assert site.ended(flow_run, 60)[0] == "CANCELLED"
    assert not run.is_taken()


@soak
def test_ten_in_the_queue_train_each_in_a_place_of_its_own(site: Site) -> None:
    queued = [site.submit(*changed(SMALL, "algo.total_steps=1024", f"group=queue{i}")) for i in range(10)]
    assert {site.ended(flow_run, 600)[0] for flow_run in queued} == {"COMPLETED"}
    runs = [site.run(flow_run) for flow_run in queued]
    assert len({run.path for run in runs}) == 10
    assert len({digest(run) for run in runs}) == 1  # the same config, undisturbed by the others
    assert [run.read_config()["group"] for run in runs] == [f"queue{i}" for i in range(10)]


def test_down_lets_a_training_write_its_checkpoint(site: Site, pair: Pair) -> None:
    run = pair.runs[1]
    before = count(run, "metrics")
    wait_for(lambda: count(run, "metrics") > before, "the training", every=0.1)
    said = site.servers("down")
    assert not site.processes("")
    saved = checkpoint.newest_good(run.checkpoints)
    assert saved is not None
    last = [e for e in read_events(run.events) if "policy_steps" in e][-1]
    assert (last["kind"], last["status"], last["policy_steps"]) == ("end", "interrupted", int(saved.name))
    assert re.findall(
        r"`\S*shepherd resume (\S+) 'plugins=\[tests.faults.faulty_envs\]'` resumes it from its checkpoint at ([\d,]+)",
        said,
    ) == [(str(run.path.relative_to(site.home.resolve())), f"{int(saved.name):,}")]
    states = query(site.home, "select state_type from flow_run where id = ?", pair.orphaned)
    assert states == [("CRASHED",)]  # a retry goes on from there

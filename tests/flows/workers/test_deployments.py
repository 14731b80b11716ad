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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.config.compose import compose
from flows.report.sentences import result_line
from flows.runs.create import create_run
from flows.stages.make_env import make_env
from flows.workers.guard import NAMES, NO_TRACKING
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests import processes
from tests.flows.compare.runs import group_of
from tests.flows.workers.site import Site
from tests.kills import workers
from tests.processes import changed, count, digest_of, finish_here, wait_for
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


# For runs that are interrupted: slow after 4,000 steps, so that the CPU is free for the rest of the test.
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
    """A flow run, watched from a terminal, whose process was killed during training; then it was retried to its end.

    Attributes:
        flow_run: its id.
        run: its run directory.
        watched: output of the terminal until the kill, in one line.
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
    """Two long flow runs that train at the same time on one worker."""

    cancelled: str
    orphaned: str
    runs: list[RunDirectory]


@soak
def test_reproduce_deployment_gives_identical_digest(site: Site, killed: Killed) -> None:
    shown = site.prefect("deployment", "run", "reproduce/default", "-p", f"source={killed.run.path}", "--watch")
    again = RunDirectory(killed.run.path.with_name(f"{killed.run.path.name}_again"))
    assert digest_of(again) == digest_of(killed.run)
    (flow_run,) = site.ask("flow_runs/filter", flows={"name": {"any_": ["reproduce"]}})
    state, message = site.state(flow_run["id"])
    assert (state, message.startswith("identical, ")) == ("COMPLETED", True), message
    assert "no known differences from the original" in site.log_of(flow_run["id"])
    assert "identical, " in " ".join(shown.split())


@pytest.fixture(scope="module")
def pair(site: Site) -> Pair:
    flow_runs = [site.submit(*LONG), site.submit(*LONG)]
    runs = [site.run(flow_run) for flow_run in flow_runs]
    assert runs[0].path != runs[1].path
    wait_for(lambda: all(count(run, "metrics") for run in runs), "both to train", every=0.1)
    return Pair(*flow_runs, runs)


def test_up_again_keeps_running_servers(site: Site) -> None:
    before = {word: site.processes(word) for word in ("prefect", "mlflow")}
    again = site.servers("up")
    assert again.count("already running") == 3
    assert f"http://127.0.0.1:{site.variables['SHEPHERD_MLFLOW_PORT']}" in again
    assert "no GPU here: flow runs wait" in again or site.processes("gpu")
    assert {word: site.processes(word) for word in before} == before
    lines = (site.home / ".env").read_text().splitlines()
    assert lines[0] == "SHEPHERD_LOCAL_LIMIT=3"
    assert [line.partition("=")[0] for line in lines[2:-1]] == [*NAMES, *NO_TRACKING]


@always
def test_deployment_has_parameter_form_and_version(site: Site) -> None:
    deployment = site.ask("deployments/name/train-ppo/default")
    properties = deployment["parameter_openapi_schema"]["properties"]
    assert "shepherd train" in properties["overrides"]["description"]
    assert "an existing run to resume" in properties["run_dir"]["description"]
    assert deployment["version"]
    assert site.ask("deployments/name/train-ppo/gpu")["work_pool_name"] == "gpu"


def test_flow_run_registers_model_and_logs_result(site: Site, killed: Killed) -> None:
    assert killed.ended == "COMPLETED"
    assert killed.run.read_summary()["model"]["version"] == 1
    names = [task["name"] for task in site.ask("task_runs/filter", limit=200, offset=0)]
    for stage in ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model"):
        assert any(name.startswith(f"{stage} ppo CartPole-v1") for name in names), stage
    assert "final evaluation" in site.log_of(killed.flow_run)  # lines from just before the kill are lost
    # `--watch` prints the message of the final state; here it ended at the kill.
    assert site.state(killed.flow_run) == ("COMPLETED", result_line(killed.run.read_summary()))
    assert "Crashed" in killed.watched


def test_deployment_extends_run_with_callback(site: Site, killed: Killed) -> None:
    plugin = "tests.probes.callbacks"
    own = ["algo.total_steps=7000", f"checkpoint.extend_from={killed.run.path}", f"plugins=[{plugin}]"]
    flow_run = site.submit(*changed(SMALL, *own, f"callbacks=[{plugin}:Recorder]"))
    assert site.ended(flow_run)[0] == "COMPLETED", site.log_of(flow_run)
    run = site.run(flow_run)
    assert run.read_identity()["extend_from"]["run_id"] == killed.run.read_identity()["run_id"]
    assert run.read_summary()["policy_steps"] == 6912  # 27 iterations of 256
    assert [e["method"] for e in read_events(run.events) if e["kind"] == "callback"][-1] == "on_end"
    assert "continues the training of" in site.log_of(flow_run)


def test_killed_flow_run_retry_matches_undisturbed_digest(site: Site, killed: Killed, tmp_path: Path) -> None:
    assert killed.crashed == "CRASHED"
    history = [state["type"] for state in site.ask(f"flow_run_states/?flow_run_id={killed.flow_run}")]
    assert history.count("CRASHED") == 1  # Prefect's worker would report it again and undo the retry
    assert site.run(killed.flow_run).path == killed.run.path
    assert count(killed.run, "resume") == 1
    assert "resuming from its checkpoint at" in site.log_of(killed.flow_run)
    typed = ["exp=ppo", *SMALL, f"run_dir={tmp_path / 'undisturbed'}"]
    undisturbed = create_run(*compose(typed), typed)
    make_env(undisturbed)
    assert digest_of(killed.run) == finish_here(undisturbed)


def test_servers_require_password_kept_in_two_files(site: Site, killed: Killed) -> None:
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
def test_flow_run_config_error_fails_with_message(site: Site) -> None:
    flow_run = site.submit("env.id=CartPol-v1")
    kind, message = site.ended(flow_run)
    assert kind == "FAILED"
    assert site.ask(f"flow_runs/{flow_run}")["name"].startswith("train ppo 20")
    wait_for(lambda: message in site.log_of(flow_run, level=logging.ERROR), "the line of the log", every=0.3)
    assert message.startswith("env.id=CartPol-v1: no such environment; did you mean 'CartPole-v1'?")
    wait_for(lambda: not site.processes("prefect.engine"), "the end of its process", every=0.1)
    assert "Traceback" not in (site.home / ".shepherd/servers/worker-local.log").read_text()


def test_notification_guide_reports_ended_and_failed_runs(site: Site, tmp_path: Path) -> None:
    page = (processes.ROOT / "docs/notifications.md").read_text()
    (code,) = re.findall(r"^```python\n# notify.py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    received = list[str]()

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server, ThreadPoolExecutor(1) as serving:
        serving.submit(server.serve_forever)
        try:
            url = "https://hooks.slack.com/services/..."
            assert url in code
            (tmp_path / "notify.py").write_text(code.replace(url, f"http://127.0.0.1:{server.server_port}"))
            site.python(str(tmp_path / "notify.py"))
            flow_runs = [site.submit("env.id=CartPol-v1"), site.submit(*changed(SMALL, "algo.total_steps=512"))]
            states = [site.ended(flow_run) for flow_run in flow_runs]
            assert [state for state, _ in states] == ["FAILED", "COMPLETED"]
            names = [site.ask(f"flow_runs/{flow_run}")["name"] for flow_run in flow_runs]
            wanted = {f"{name}: {state.title()}\n{text}" for name, (state, text) in zip(names, states, strict=True)}
            wait_for(lambda: wanted <= {*received}, f"the messages; received: {received}", 60, every=0.3)
        finally:
            site.prefect("automation", "delete", "a run has ended")
            server.shutdown()


def test_compare_flow_run_ends_with_verdict(site: Site) -> None:
    for group, shift in (("low", 0.0), ("high", 90.0)):
        group_of(site.home / "compared", group, [100 + shift + seed for seed in range(10)])
    good = site.start("compare/default", sides=["low", "high"], out="compared/report", runs="compared")
    headline = "high is significantly better than low on CartPole-v1."
    assert site.ended(good) == ("COMPLETED", headline)
    assert headline in (site.home / "compared/report/index.html").read_text()
    shown = site.ask("artifacts/filter", limit=200, offset=0)
    kinds = Counter(artifact["type"] for artifact in shown if artifact["flow_run_id"] == good)
    assert kinds == {"markdown": 1, "image": 6}


def test_sweep_completes_after_worker_is_killed(site: Site) -> None:
    """Before a trial starts or while it runs, chosen at random; tests/kills/workers.py tests each case 20 times."""
    seed = int.from_bytes(os.urandom(4))
    record = workers.killed(site, [workers.KINDS[seed % len(workers.KINDS)]], seed, 0)
    assert not record["wrong"], record


@soak
def test_cancelled_sweep_cancels_its_trials(site: Site) -> None:
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


def test_cancelled_flow_run_saves_checkpoint_other_continues(site: Site, pair: Pair) -> None:
    site.prefect("flow-run", "cancel", pair.cancelled)
    assert site.ended(pair.cancelled, 60)[0] == "CANCELLED"
    # No checkpoint was due, so the cancellation caused this one.
    saved = checkpoint.newest_good(pair.runs[0].checkpoints)
    assert saved is not None
    hint = f"retry {pair.cancelled}` resumes the run from its checkpoint at {int(saved.name):,} policy steps"
    assert hint in site.log_of(pair.cancelled)
    assert "Crash detected" not in site.log_of(pair.cancelled)
    assert site.state(pair.orphaned)[0] == "RUNNING"


@soak
def test_flow_run_refuses_run_in_training(site: Site, pair: Pair) -> None:
    run = pair.runs[1]
    kind, message = site.ended(site.submit("metric.log_every=128", run_dir=str(run.path)))
    assert (kind, message.partition(": pid ")[0]) == ("FAILED", str(run.path))  # "… is writing this run"
    assert run.read_config()["metric"]["log_every"] == 64


@soak
def test_orphaned_flow_run_crashes_and_retry_resumes(site: Site, pair: Pair) -> None:
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


def test_worker_refuses_planted_commands(site: Site, tmp_path: Path) -> None:
    """Deployments and job variables written into the database by others are refused."""
    command = {"command": f"touch {tmp_path}/run"}
    ours = site.ask("deployments/name/train-ppo/default")
    place = {key: ours[key] for key in ("flow_id", "work_pool_name", "work_queue_name", "entrypoint", "pull_steps")}
    planted = site.ask("deployments/", name="planted", job_variables=command, **place)["id"]
    due = {"state": {"type": "SCHEDULED"}}
    for deployment, own, expected in (
        (planted, {}, "defines no deployment planted"),
        (ours["id"], {"job_variables": command}, "change command"),
    ):
        flow_run = site.ask(f"deployments/{deployment}/create_flow_run", **due, **own)["id"]
        state, message = site.ended(flow_run)
        assert state == "FAILED" and expected in message
    assert not list(tmp_path.iterdir())


@soak
def test_training_continues_during_server_outage(site: Site) -> None:
    # Each boundary sends requests to the server.
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
def test_flow_run_is_cancellable_after_server_outage(site: Site) -> None:
    flow_run = site.submit(*LONG)
    run = site.run(flow_run)
    wait_for(lambda: count(run, "metrics"), "the training", every=0.3)
    for pid in site.processes("flows.workers.prefect_app"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(70)  # Prefect's own worker gives up after 50 s
    site.servers("up")
    site.prefect("flow-run", "cancel", flow_run)
    assert site.ended(flow_run, 60)[0] == "CANCELLED"
    assert not run.is_taken()


@soak
def test_ten_queued_flow_runs_train_independently(site: Site) -> None:
    queued = [site.submit(*changed(SMALL, "algo.total_steps=1024", f"group=queue{i}")) for i in range(10)]
    assert {site.ended(flow_run, 600)[0] for flow_run in queued} == {"COMPLETED"}
    runs = [site.run(flow_run) for flow_run in queued]
    assert len({run.path for run in runs}) == 10
    assert len({digest_of(run) for run in runs}) == 1  # the same config, undisturbed by the others
    assert [run.read_config()["group"] for run in runs] == [f"queue{i}" for i in range(10)]


def test_down_lets_training_save_checkpoint(site: Site, pair: Pair) -> None:
    run = pair.runs[1]
    before = count(run, "metrics")
    wait_for(lambda: count(run, "metrics") > before, "the training", every=0.1)
    output = site.servers("down")
    assert not site.processes("")
    saved = checkpoint.newest_good(run.checkpoints)
    assert saved is not None
    last = [e for e in read_events(run.events) if "policy_steps" in e][-1]
    assert (last["kind"], last["status"], last["policy_steps"]) == ("end", "interrupted", int(saved.name))
    assert re.findall(
        r"`\S*shepherd resume (\S+) 'plugins=\[tests.faults.faulty_envs\]'` resumes it from its checkpoint at ([\d,]+)",
        output,
    ) == [(str(run.path.relative_to(site.home.resolve())), f"{int(saved.name):,}")]
    states = query(site.home, "select state_type from flow_run where id = ?", pair.orphaned)
    assert states == [("CRASHED",)]  # a retry resumes the run

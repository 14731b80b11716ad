"""`make up`: what it refuses before it starts a server, its deployments, and how it edits the user's `.env`."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import prefect.settings
import pytest
import yaml
from prefect.server.schemas.states import Cancelling
from prefect.server.services import cancellation_cleanup
from prefect.settings import temporary_settings as prefect_settings

from flows.process.network import unreachable
from flows.runs import lineage
from flows.workers import guard, pools, servers, up
from flows.workers.local_api import prefect_api
from flows.workers.mlflow_app import FIRST_PAGE, redirect_to_runs
from rlcore.errors import UserError
from rlcore.system.lifeline import alive
from tests.processes import ROOT, free_port, wait_for


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new home with free ports."""
    (tmp_path / "flows").mkdir()
    for kind in ("train", "sweep"):
        (tmp_path / f"flows/{kind}.py").write_text(FLOW.format(kind=kind))
    (tmp_path / "flows/reproduce.py").write_text(REPRODUCE)
    (tmp_path / "flows/comparison.py").write_text(COMPARE)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    for key, _ in up.PORTS.values():
        monkeypatch.setenv(key, str(free_port()))
    # Commands set missing settings of Prefect and MLflow, which must not reach other tests.
    monkeypatch.setattr(up, "configure_environment", lambda: None)
    return tmp_path


@pytest.fixture
def ssh_port() -> Iterator[int]:
    """The port of a program that accepts connections and greets like an SSH server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=greet, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def start(name: str, command: tuple[str, ...]) -> None:
    """Start a server from a process that ends, as `make up` does."""
    code = f"from flows.workers import servers; servers.start(servers.Server({name!r}, {command!r}, {{}}))"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


def test_server_files_are_private_to_user(checkout: Path) -> None:
    start("scribe", ("sh", "-c", "mkdir runs && echo lr > runs/config.yaml && echo said"))
    log = servers.folder() / "scribe.log"
    wait_for(lambda: log.exists() and log.read_text() == "said\n", "what it says")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (log, checkout / "runs", checkout / "runs/config.yaml")}
    assert modes == {"scribe.log": 0o600, "runs": 0o700, "config.yaml": 0o600}


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    assert up.main(["up"]) == 2
    assert not list(servers.folder().glob("*.pid"))  # nothing was started
    return capsys.readouterr().err


@pytest.mark.parametrize("key", ["SHEPHERD_PREFECT_PORT", "SHEPHERD_MLFLOW_PORT"])
def test_up_refuses_port_in_use(
    checkout: Path, ssh_port: int, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(key, str(ssh_port))
    assert f"{key}={ssh_port}: another program uses this port; set {key} to a free port" in refused(capsys)


def test_up_refuses_same_port_for_both_servers(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHEPHERD_MLFLOW_PORT", os.environ["SHEPHERD_PREFECT_PORT"])
    assert "Prefect's server uses this port" in refused(capsys)


def test_up_keeps_running_port_and_ends_orphans(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = "import time; time.sleep(600)"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); {child}"
    command = (sys.executable, "-c", program, "--port", "4321")
    start("mlflow", command)
    try:
        assert up.main(["up"]) == 2
        assert (
            "mlflow is running on port 4321; run `make down` first, or set SHEPHERD_MLFLOW_PORT=4321"
            in capsys.readouterr().err
        )
        main = servers.running()["mlflow"]
        pids = wait_for(lambda: len(p := [pid for pid, _ in servers.find_marked()]) == 2 and p, "its child")
        os.kill(main, signal.SIGKILL)
        wait_for(lambda: servers.port_of("mlflow") is None, "its end")
        up._check_ports()
        assert not any(map(alive, pids))
    finally:
        up.main(["down"])
        assert not list(servers.find_marked())
        assert not list(servers.folder().glob("*.pid"))


def test_down_lists_every_variable_to_unset(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up.main(["down"]) == 0
    names = guard.client_variables("http://here", "http://there", "secret")
    assert f"  unset {' '.join(names)}\n" in capsys.readouterr().out


def test_up_refuses_while_command_uses_databases(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hold = "with databases_without_server(): print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", f"import sys; from flows.workers.servers import *\n{hold}", "seed=3"]
    command = subprocess.Popen(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert command.stdout is not None
    command.stdout.readline()
    try:
        output = refused(capsys)
        assert f"pid {command.pid} (" in output
        assert "seed=3" in output
    finally:
        command.communicate()


def test_check_servers_refuses_databases_in_use(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    servers.check_servers()
    start("mlflow", (sys.executable, "-c", "import time; time.sleep(600)"))
    try:
        with pytest.raises(UserError, match="`make up` have this home's databases open"):
            servers.check_servers()
        with pytest.raises(UserError, match="`make up` have this home's databases open"), prefect_api():
            pass
    finally:
        up.main(["down"])


def test_unreachable_reports_non_http_answer(ssh_port: int) -> None:
    assert unreachable(f"http://127.0.0.1:{ssh_port}/health") == "the answer is not HTTP"


def test_check_servers_refuses_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    class Prefect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"Basic {base64.b64encode(b'shepherd:right').decode()}"
            self.send_response(200 if self.path == "/api/health" or known else 401)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Prefect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "shepherd:right")
        servers.check_servers()
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "shepherd:wrong")
        with pytest.raises(UserError, match="refuses PREFECT_API_AUTH_STRING"):
            servers.check_servers()
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "query", "ours"),
    [("/", b"", True), ("/", b"runs", False), ("/graphql", b"", False), ("/health", b"", False)],
)
def test_redirect_to_runs_changes_only_first_page(path: str, query: bytes, ours: bool) -> None:
    status, body = get_response(redirect_to_runs(answering), path, query_string=query)
    assert status == 200
    assert body == (FIRST_PAGE.encode() if ours else b"MLflow")


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """A stand-in for MLflow's application."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"MLflow"})


def get_response(app: Any, path: str, **more: Any) -> tuple[int, bytes]:
    """Status and body of the response of an application."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "path": path, "headers": [], "query_string": b""} | more
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


def test_password_is_private_and_in_no_command_line(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = checkout / ".shepherd/servers/password"
    password = guard.keep_password(file)
    assert len(password) >= 32
    assert guard.keep_password(file) == password
    (checkout / ".env").write_text("MINE=1\n")
    (checkout / ".env").chmod(0o644)
    variables = guard.client_variables("http://here", "http://there", password)
    guard.write_dotenv(variables)
    assert password in (checkout / ".env").read_text()
    assert [path.stat().st_mode & 0o777 for path in (file, checkout / ".env")] == [0o600, 0o600]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for server in (up._prefect(), up._mlflow(), up._worker(1, "0")):
        assert password not in repr(server)  # of the command line too
    assert up._prefect().variables["PREFECT_SERVER_API_AUTH_STRING"] == f"shepherd:{password}"


FLOW = """
from prefect import flow

@flow(name="{kind}-two-words", version="7")
def {kind}_two_words(overrides: list[str] = [], accelerator: str = ""):
    \"\"\"Learns.

    Args:
        overrides: as typed.
    \"\"\"
"""


REPRODUCE = """
from prefect import flow

@flow(name="reproduce", version="7")
def reproduce(source: str):
    \"\"\"Trains again.

    Args:
        source: of what, as models:/NAME@champion.
    \"\"\"
"""


COMPARE = """
from prefect import flow

@flow(name="compare", version="7")
def compare(sides: list[str] = []):
    \"\"\"Judges.

    Args:
        sides: two or more, as mlflow:EXPERIMENT.
    \"\"\"
"""


def test_deploy_creates_deployments_of_every_flow(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MagicMock()
    client.__enter__.return_value = client
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: client)
    monkeypatch.setattr("flows.workers.pools.ALGORITHMS", {"two-words": None})
    names = [f"{kind}-two-words/{name}" for kind in ("train", "sweep") for name in ("default", "gpu")]
    assert pools.deploy() == [*names, "reproduce/default", "compare/default"]
    *of_the_algorithm, again, compare = (call.kwargs for call in client.create_deployment.call_args_list)
    assert (again["entrypoint"], again["work_pool_name"]) == ("flows/reproduce.py:reproduce", "local")
    assert "models:/" in again["parameter_openapi_schema"]["properties"]["source"]["description"]
    assert (compare["entrypoint"], compare["work_pool_name"]) == ("flows/comparison.py:compare", "local")
    assert "mlflow:" in compare["parameter_openapi_schema"]["properties"]["sides"]["description"]
    created = {(one["entrypoint"].partition(":")[0], one["name"]): one for one in of_the_algorithm}
    places = {
        place: (one["work_pool_name"], one["work_queue_name"], one["parameters"]) for place, one in created.items()
    }
    gpu = {"accelerator": "cuda"}
    assert places == {
        ("flows/train.py", "default"): ("local", "default", {}),
        ("flows/train.py", "gpu"): ("gpu", "default", gpu),
        ("flows/sweep.py", "default"): ("local", "drivers", {}),  # it waits for trainings and takes none of their slots
        ("flows/sweep.py", "gpu"): ("local", "drivers", gpu),
    }
    pulled = {"prefect.deployments.steps.set_working_directory": {"directory": str(checkout)}}
    assert all(one["pull_steps"] == [pulled] for one in of_the_algorithm)
    default = created["flows/train.py", "default"]
    assert (default["entrypoint"], default["version"]) == ("flows/train.py:train_two_words", "7")
    assert default["description"] == "Train two-words on pool local.\n\nLearns."
    calls = [call.kwargs for call in client.create_deployment.call_args_list]
    tags = [one["tags"] for one in calls]
    assert tags[0] == ["train", "two-words", "local"]
    assert len({tuple(one) for one in tags}) == len({one["description"] for one in calls}) == len(calls)
    assert "as typed" in default["parameter_openapi_schema"]["properties"]["overrides"]["description"]
    flows = [call.args[0] for call in client.create_flow_from_name.call_args_list]
    assert flows == ["train-two-words", "sweep-two-words", "reproduce", "compare"]


def test_deploy_elsewhere_warns_of_untried_prefect(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    monkeypatch.setattr(servers, "check_servers", lambda: None)
    monkeypatch.setattr(up, "deploy", lambda: ["train-a2c/default"])
    assert up.main(["deploy"]) == 0
    assert capsys.readouterr() == ("train-a2c/default\n", "")
    monkeypatch.setattr("flows.prefect_repairs.version", lambda _: "3.9.1")
    assert up.main(["deploy"]) == 0
    output, errors = capsys.readouterr()
    assert output == "train-a2c/default\n"
    assert errors.startswith("shepherd: warning: Prefect 3.9.1 is installed")


def test_prefect_server_ends_cancelling_after_120_s(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's server, with the settings of `make up`, schedules a check of a flow run that is being cancelled."""
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "")
    variables = up._prefect().variables
    name = "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS"
    checks: list[tuple[str, datetime]] = []

    class Docket:
        """The queue of Prefect's services; only notes what is scheduled for when."""

        def replace(self, function: Any, key: str, when: datetime) -> Any:
            checks.append((function.__name__, when))
            return AsyncMock()

    asked = Cancelling(timestamp=datetime(2026, 1, 1, 12, tzinfo=UTC))
    with prefect_settings({getattr(prefect.settings, name): variables[name]}):
        schedule = cancellation_cleanup.maybe_schedule_cancelling_timeout_check_for_state
        asyncio.run(schedule(docket=Docket(), flow_run_id=uuid4(), state=asked))
    assert checks == [("handle_cancelling_timeout", datetime(2026, 1, 1, 12, 2, tzinfo=UTC))]


def test_write_dotenv_keeps_lines_of_user(checkout: Path) -> None:
    path, variables = checkout / ".env", {"PREFECT_API_URL": "http://here", "MLFLOW_TRACKING_URI": "http://there"}
    path.write_text("FIRST=1")
    guard.write_dotenv(variables)
    path.write_text(path.read_text() + "LAST=2\n")
    guard.write_dotenv(variables)
    ours = [guard.BEGIN, "PREFECT_API_URL=http://here", "MLFLOW_TRACKING_URI=http://there", guard.END]
    assert path.read_text().splitlines() == ["FIRST=1", *ours, "LAST=2"]
    path.write_text(path.read_text().replace(f"{guard.END}\n", ""))  # the user has deleted this line
    guard.write_dotenv({})
    assert path.read_text() == "FIRST=1\nLAST=2\n"
    path.write_text("")
    guard.write_dotenv(variables)
    guard.write_dotenv({})
    assert not path.exists()


def test_prefect_yaml_matches_registry() -> None:
    assert (ROOT / "prefect.yaml").read_text() == pools.prefect_yaml()


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, used as the running code, and an `origin` that has the commit."""
    folder = tmp_path / "checkout"

    def git(*words: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    (folder / "code.py").write_text("1\n")
    for words in ("init", "add .", "commit -m one"):
        git(*words.split())
    git("clone", "--bare", ".", str(tmp_path / "origin"))
    git("remote", "add", "origin", f"file://{tmp_path}/origin")
    monkeypatch.setattr(lineage, "CODE", folder)
    return folder


def test_pull_steps_pin_checked_out_commit(deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_REPOSITORY", f"file://{tmp_path}/origin")
    commit = lineage.commit()
    assert len(commit) == 40
    (step,) = pools.pull_steps()
    assert step[pools.CLONE] == {"repository": f"file://{tmp_path}/origin", "commit_sha": commit}


@pytest.mark.parametrize(
    ("repository", "change", "expected"),
    [
        ("https://me:hunter2@example.org/a.git", "", r"https://me:\*\*\*@example.org/a.git: .*no password"),
        ("file://{}/origin", "code.py", "which has uncommitted changes or no commit; commit the changes"),
        ("file://{}/nowhere", "", "of this checkout cannot be fetched .*; push it"),
    ],
)
def test_pull_steps_refuse_repository_with_other_code(
    deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: str, change: str, expected: str
) -> None:
    monkeypatch.setenv("SHEPHERD_REPOSITORY", repository.format(tmp_path))
    if change:
        (deployed / change).write_text("2\n")
    with pytest.raises(UserError, match=f"^SHEPHERD_REPOSITORY=.*{expected}"):
        pools.pull_steps()


def test_pull_steps_refuse_unpushed_commit(deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_REPOSITORY", f"file://{tmp_path}/origin")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, "commit", "--allow-empty", "-m", "two"], cwd=deployed, check=True, capture_output=True)
    with pytest.raises(UserError, match=f"commit {lineage.commit()[:10]} of this checkout cannot be fetched"):
        pools.pull_steps()


def test_prefect_yaml_build_steps_pin_commit(deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's own functions run the build steps of the file and insert their output into its pull steps."""
    from prefect.deployments.steps.utility import run_shell_script
    from prefect.utilities.templating import apply_values

    whole = yaml.safe_load(pools.prefect_yaml())
    steps = [next(iter(step.values())) for step in whole["build"]]
    monkeypatch.chdir(deployed)

    async def run_steps() -> dict[str, Any]:
        return {step["id"]: await run_shell_script(step["script"]) for step in steps}

    (pull,) = apply_values(whole["pull"], asyncio.run(run_steps()))
    assert pull[pools.CLONE] == {"repository": f"file://{tmp_path}/origin", "commit_sha": lineage.commit()}
    (deployed / "code.py").write_text("2\n")
    with pytest.raises(RuntimeError, match="commit your changes first"):
        asyncio.run(run_steps())


def test_gather_matches_bash_brace_expansion() -> None:
    kinds = ("train", "sweep")
    names = [f"{kind}-{a}/{of}" for a in ("ppo", "sac_ae") for kind in kinds for of in ("default", "gpu")]
    names += ["compare/default", "reproduce/default"]
    for ending in ("/default", "/gpu"):
        short = up._gather(names, ending)
        output = subprocess.run(
            ["bash", "-c", f"echo {short.replace(', ', ' ')}"], capture_output=True, text=True
        ).stdout
        assert sorted(output.split()) == sorted(name for name in names if name.endswith(ending))
    assert up._gather(["compare/default"], "/default") == "compare/default"
